"""What one asks of a testbed, and what is refused."""

import pytest

from launch.virtual_cluster import virtual_nodes
from launch.virtual_cluster.options import Options, read
from muster.errors import UsageError


def options(count: str = "4", rate: str | None = None) -> Options:
    return read(count, rate, control_network=False, private_home=False, venv="/venv")


def test_the_same_rate_in_other_words_is_the_same_testbed():
    assert options(rate="1gbit") == options(rate="1000mbit") == options(rate="1.0GBIT")
    assert str(options(rate="1000mbit")) == "--nodes 4 --rate 1gbit"


def test_an_environment_is_part_of_private_homes_only():
    assert options().venv is None
    private = read("2", None, control_network=True, private_home=True, venv="/venv")
    assert str(private) == "--nodes 2 --control-network --private-home with /venv"


@pytest.mark.parametrize("count", ["0", "17", "x", ""])
def test_a_testbed_has_1_to_16_nodes(count):
    with pytest.raises(UsageError, match="1 to 16"):
        options(count)


@pytest.mark.parametrize("rate", ["0mbit", "fast", "1kbit", "9999gbit", ""])
def test_a_rate_is_a_speed(rate):
    with pytest.raises(UsageError, match=f"--rate {rate}: expected a speed"):
        options(rate=rate)


def test_all_problems_come_at_once():
    with pytest.raises(UsageError) as refused:
        options("99", "junk")
    assert len(str(refused.value).splitlines()) == 2


def test_the_kind_of_network_is_part_of_the_testbed():
    two = read("2", None, rails=2)
    assert str(two) == "--nodes 2 --rails 2"
    assert [node.second for node in virtual_nodes.of(two, [0])] == ["10.10.1.101", "10.10.1.102"]
    six = read("2", None, ipv6=True)
    assert str(six) == "--nodes 2 --ipv6"
    (_, node) = virtual_nodes.of(six, [0])
    assert (node.address, node.known_as) == ("fd00:10:10:1::2", "192.168.77.2")
    assert node.slurm_address == "192.168.77.2"  # Slurm would have to be told of IPv6
