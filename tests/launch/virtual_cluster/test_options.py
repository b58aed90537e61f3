"""The options of a testbed, and which values are refused."""

import pytest

from launch import testbed
from launch.virtual_cluster.virtual_nodes import ClusterState, Options, rate
from muster.errors import UsageError


def test_the_same_rate_in_other_words_is_the_same_testbed():
    assert rate("1gbit") == rate("1000mbit") == rate("1.0GBIT")
    assert str(Options(rate=rate("1000mbit"))) == "--nodes 4 --rate 1gbit"


REFUSED = [
    *((["--nodes", text], r"--nodes: .*unknown .*; choose from 1, .* 16") for text in ("0", "17")),
    *((["--nodes", text], "--nodes: invalid int value") for text in ("x", "")),
    *(([f"--rate={text}"], f"--rate: '{text}': expected a speed from 64kbit to 100gbit")
      for text in ("0mbit", "fast", "1kbit", "9999gbit", "")),
    (["--rails", "2"], "--rails was removed; add a second card with `ip link add"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "problem"), REFUSED)
def test_wrong_testbed_option_is_refused(monkeypatch, words, problem):
    monkeypatch.setattr("sys.argv", ["testbed.py", "up", *words])
    with pytest.raises(UsageError, match=problem):
        testbed.main()


def test_testbed_options_include_kind_of_network_and_homes():
    private = Options(nodes=2, control_network=True, private_home=True, venv="/venv")
    assert str(private) == "--nodes 2 --control-network --private-home with /venv"
    six = Options(nodes=2, control_network=True, ipv6=True)
    assert str(six) == "--nodes 2 --ipv6"
    (_, node) = ClusterState("", "", six, (0,)).nodes
    assert (node.address, node.resolved_address) == ("fd00:10:10:1::2", "192.168.77.2")
    assert node.slurm_address == "192.168.77.2"  # Slurm would have to be told of IPv6
