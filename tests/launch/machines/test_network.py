"""Gradients take the network that all nodes have in common, and not the one for logging in."""

import pytest

from configs.errors import MusterError
from launch.machines.network import choose


def probe(*addresses, came_by=()):
    interfaces = [
        {"name": f"eth{i}", "address": address, "netmask": netmask, "mtu": 1500}
        for i, (address, netmask) in enumerate(addresses)
    ]
    return {"interfaces": interfaces, "came_by": list(came_by)}


LOOP = ("127.0.0.1", "255.0.0.0")


def cloudlab(index):
    control = f"128.110.0.{index}"
    return probe(
        LOOP,
        (control, "255.255.252.0"),
        (f"10.10.1.{index}", "255.255.255.0"),
        ("172.17.0.1", "255.255.0.0"),  # docker's, the same on every node
        came_by=[control],
    )


PROBES = [cloudlab(1), cloudlab(2)]
NAMES = ["a", "b"]
NONE = [None, None]


def test_the_experiment_network_wins_over_the_one_that_ssh_came_by():
    choice = choose(PROBES, NAMES, NONE, None)
    assert choice.network == "10.10.1.0/24" and choice.addresses == ("10.10.1.1", "10.10.1.2")
    assert choice.others == ("128.110.0.0/22",)


def test_the_one_that_was_asked_for_wins_over_all():
    choice = choose(PROBES, NAMES, ["10.10.1.1", "10.10.1.2"], "128.110.0.0/16")
    assert choice.addresses == ("128.110.0.1", "128.110.0.2")
    with pytest.raises(MusterError, match=r"not all nodes .* a has 127.0.0.1 on eth0, 128"):
        choose(PROBES, NAMES, NONE, "10.9.0.0/16")


def test_given_addresses_and_numeric_names_are_meant():
    given = ["128.110.0.1", "128.110.0.2"]
    assert choose(PROBES, NAMES, given, None).network == "128.110.0.0/22"
    assert choose(PROBES, given, NONE, None).network == "128.110.0.0/22"


def test_only_one_network_leaves_no_choice():
    probes = [
        probe(LOOP, (f"192.168.0.{i}", "255.255.255.0"), came_by=[f"192.168.0.{i}"]) for i in (1, 2)
    ]
    assert choose(probes, NAMES, NONE, None).addresses == ("192.168.0.1", "192.168.0.2")


def test_none_in_common_is_said_with_all_addresses():
    probes = [probe(LOOP, (f"10.0.{i}.1", "255.255.255.0")) for i in (0, 1)]
    with pytest.raises(
        MusterError, match=r"no network in common: a has .*10.0.0.1.*; b has .*10.0.1"
    ):
        choose(probes, NAMES, NONE, None)


def test_two_names_of_one_machine_are_not_two_nodes():
    with pytest.raises(MusterError, match=r"a and b are the same machine \(10\.0\.0\.1\)"):
        choose([probe(LOOP, ("10.0.0.1", "255.255.255.0"))] * 2, NAMES, NONE, None)
