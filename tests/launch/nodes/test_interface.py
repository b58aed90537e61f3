"""gloo and nccl are told the interface by name, and no other than that."""

import pytest

from launch.nodes import this_machine
from muster.errors import MusterError

OWN = {"127.0.0.1": "lo", "10.10.1.1": "eth1", "10.10.2.1": "eth10", "fd00::1": "eth2"}


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    monkeypatch.setattr(this_machine, "addresses", lambda: OWN)


def test_nccl_does_not_take_eth10_for_eth1():
    """NCCL takes `eth1` for the beginning of a name, and `=eth1` for a name."""
    name = this_machine.interface_of("10.10.1.1", "10.10.0.0/16", "node0")
    found = this_machine.interface_variables(name, "10.10.1.1")
    assert found == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}


def test_ipv6():
    assert this_machine.interface_of("fd00::1", "fd00::/64", "node0") == "eth2"
    found = this_machine.interface_variables("eth2", "fd00::1")
    assert found["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert this_machine.own_address_in("fd00::/64", "node0") == "fd00::1"


def test_an_address_outside_the_network_that_was_asked_for_is_refused():
    with pytest.raises(MusterError, match=r"not in --network 10\.10\.2\.0/24; it has .*on eth10"):
        this_machine.interface_of("10.10.1.1", "10.10.2.0/24", "node1")


def test_an_interface_that_nobody_knows_is_not_named():
    assert (
        this_machine.interface_variables(
            this_machine.interface_of("10.9.9.9", None, "node0"), "10.9.9.9"
        )
        == {}
    )
