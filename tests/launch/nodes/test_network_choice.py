"""Gradients use the network that all nodes have in common, not the network for logging in."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from launch.nodes.answers import Interface
from launch.nodes.network_choice import Choice, choose
from muster.errors import MusterError


def probe(*addresses, came_by=()):
    """The probe of a node with these addresses, each on its own network card."""
    interfaces = [Interface(f"eth{index}", *address) for index, address in enumerate(addresses)]
    return SimpleNamespace(interfaces=interfaces, came_by=came_by)


LOOP = ("127.0.0.1", "255.0.0.0")


def cloudlab(index):
    control, experiment = f"128.110.0.{index}", f"10.10.1.{index}"
    docker = ("172.17.0.1", "255.255.0.0")  # the same on every node
    own = [(control, "255.255.252.0"), (experiment, "255.255.255.0"), docker]
    return probe(LOOP, *own, came_by=[control])


PROBES = [cloudlab(1), cloudlab(2)]
NAMES = ["a", "b"]
NONE = [None, None]


def test_the_experiment_network_wins_over_the_one_that_ssh_came_by():
    choice = choose(PROBES, NAMES, NONE, None)
    assert choice.network == "10.10.1.0/24" and choice.addresses == ("10.10.1.1", "10.10.1.2")
    assert choice.others == ("128.110.0.0/22",)


def test_network_flag_wins_over_all():
    choice = choose(PROBES, NAMES, ["10.10.1.1", "10.10.1.2"], "128.110.0.0/16")
    assert choice.addresses == ("128.110.0.1", "128.110.0.2")
    with pytest.raises(MusterError, match=r"not all nodes .* a has 127.0.0.1 on eth0, 128"):
        choose(PROBES, NAMES, NONE, "10.9.0.0/16")


def test_given_addresses_and_numeric_names_are_meant():
    addresses = ["128.110.0.1", "128.110.0.2"]
    assert choose(PROBES, NAMES, addresses, None).network == "128.110.0.0/22"
    assert choose(PROBES, addresses, NONE, None).network == "128.110.0.0/22"
    assert choose(PROBES, NAMES, [None, addresses[1]], None).network == "128.110.0.0/22"
    apart = ["10.10.1.1", "128.110.0.2"]
    assert choose(PROBES, NAMES, apart, None) == Choice(None, tuple(apart))


def test_nodes_on_separate_networks_use_the_given_addresses():
    probes = [probe(LOOP, (f"10.1.{i}.1", "255.255.255.255")) for i in (0, 1)]
    apart = ("10.1.0.1", "10.1.1.1")
    assert choose(probes, NAMES, apart, None) == Choice(None, apart)
    assert choose(probes, apart, NONE, None) == Choice(None, apart)
    assert choose(probes, NAMES, NONE, "10.1.0.0/16") == Choice("10.1.0.0/16", apart)
    message = r"no network in common: a has .*10.1.0.1.*; b has .*; .* address= of each node"
    with pytest.raises(MusterError, match=message):
        choose(probes, NAMES, ["10.1.0.1", None], None)


def test_an_address_that_the_node_does_not_have_is_refused():
    message = r"^b does not have .* address 10\.10\.1\.9: b has 127\.0"
    with pytest.raises(MusterError, match=message):
        choose(PROBES, NAMES, ["10.10.1.1", "10.10.1.9"], None)


def test_ipv6_is_used_if_asked_for_or_alone():
    def dual(i):
        return probe((f"10.0.{i}.1", "255.255.255.0"), (f"fd00::{i}", "64"))

    probes = [dual(1), dual(2)]
    expected = Choice("fd00::/64", ("fd00::1", "fd00::2"))
    assert choose(probes, NAMES, NONE, "fd00::/64") == expected
    assert choose(probes, NAMES, NONE, None) == expected
    assert choose(probes, ["fd00::1", "fd00::2"], NONE, None) == expected
    pairs = zip(probes, PROBES, strict=True)
    both = [
        SimpleNamespace(interfaces=six.interfaces + four.interfaces, came_by=four.came_by)
        for six, four in pairs
    ]
    assert choose(both, NAMES, NONE, None).network == "10.10.1.0/24"


def test_ipv4_comes_first_on_the_interface_of_ssh():
    """IPv4 is first on that interface, but any other interface comes before it, even with IPv6."""
    four = [(f"128.110.0.{i}", "255.255.252.0") for i in (1, 2)]
    slaac = [(f"2001:db8::{i}", "64") for i in (1, 2)]

    def node(i, *more):
        both = probe(four[i], slaac[i], *more, came_by=[four[i][0]])
        both.interfaces[1] = replace(both.interfaces[1], name="eth0")
        return both

    assert choose([node(0), node(1)], NAMES, NONE, None).network == "128.110.0.0/22"
    probes = [node(i, (f"fd00:1::{i + 1}", "64")) for i in (0, 1)]
    assert choose(probes, NAMES, NONE, None).network == "fd00:1::/64"


def test_two_names_of_one_machine_are_not_two_nodes():
    with pytest.raises(MusterError, match=r"a and b are the same machine \(10\.0\.0\.1\)"):
        choose([probe(LOOP, ("10.0.0.1", "255.255.255.0"))] * 2, NAMES, NONE, None)
