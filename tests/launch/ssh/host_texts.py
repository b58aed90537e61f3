"""What hosts on a command line are read as, and what is said of those that are refused."""

import pytest

from launch.ssh.hosts import parse_hosts
from muster.errors import UsageError


def names(*words: str) -> list[str]:
    return [node.name for node in parse_hosts(words, 1, "--hosts")]


def refused(*words: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse_hosts(words, 1, "--hosts")
    return str(caught.value).split("\n")
