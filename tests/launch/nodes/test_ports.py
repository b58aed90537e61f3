"""Ports are free, and from the range that was asked for."""

import socket

import pytest

from configs.settings.launch import LaunchConfig
from launch.nodes.this_machine import PORTS, among, free_port
from muster.errors import MusterError, UsageError


def test_a_free_port_of_a_range():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        assert free_port(0, range(port, port + 5)) in range(port + 1, port + 5)
        with pytest.raises(MusterError, match=f"no free port between {port} and {port}; give"):
            free_port(0, range(port, port + 1))


def test_a_range_is_two_ports():
    config = LaunchConfig(port_range="20000:20100")
    assert config.ports == (20000, 20100)
    assert (among(config.ports)[0], among(config.ports)[-1]) == (20000, 20100)
    assert LaunchConfig().ports is None and among(None) == PORTS


@pytest.mark.parametrize(
    "text", ["", "20000", "20100:20000", "80:90", "60000:70000", "a:b", "1:2:3"]
)
def test_what_is_no_range_is_refused(text):
    with pytest.raises(UsageError, match=r"--port-range .*use FIRST:LAST"):
        LaunchConfig(port_range=text)
