"""Ports are free and in the requested range; gloo and nccl are told the interface."""

import socket

import pytest

from configs.settings.launch import LaunchConfig, PortRange
from launch.nodes import this_machine
from launch.nodes.this_machine import free_port, ports_of
from muster.errors import MusterError, UsageError
from tests.configs.made import make_config
from tests.written import write

OWN = {"127.0.0.1": "lo", "10.10.1.1": "eth1", "10.10.2.1": "eth10", "fd00::1": "eth2"}


@pytest.fixture(autouse=True)
def _own(monkeypatch):
    monkeypatch.setattr(this_machine, "addresses", lambda: OWN)


def test_nccl_does_not_take_eth10_for_eth1():
    """NCCL takes `eth1` as the beginning of a name, and `=eth1` as a whole name."""
    name = this_machine.interface_of("10.10.1.1", "10.10.0.0/16", "node0")
    found = this_machine.interface_variables(name, "10.10.1.1")
    assert found == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1"}
    unknown = this_machine.interface_of("10.9.9.9", None, "node0")
    assert this_machine.interface_variables(unknown, "10.9.9.9") == {}


def test_ipv6_interface_gets_af_inet6():
    assert this_machine.interface_of("fd00::1", "fd00::/64", "node0") == "eth2"
    found = this_machine.interface_variables("eth2", "fd00::1")
    assert found["NCCL_SOCKET_FAMILY"] == "AF_INET6"
    assert this_machine.own_address_in("fd00::/64", "node0") == "fd00::1"


def test_an_address_outside_the_network_that_was_asked_for_is_refused():
    with pytest.raises(MusterError, match=r"not in --network 10\.10\.2\.0/24; it has .*on eth10"):
        this_machine.interface_of("10.10.1.1", "10.10.2.0/24", "node1")


def test_a_free_port_of_a_range():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ports_of(PortRange(port, port + 4))
        assert free_port(ports) in range(port + 1, port + 5)
        with pytest.raises(MusterError, match=f"no free port between {port} and {port}; give"):
            free_port(range(port, port + 1))


def test_port_range_of_another_form_is_refused():
    for text in ("20000", "20100:20000", "80:90", "60000:70000", "a:b", "1:2:3"):
        with pytest.raises(UsageError, match=r"--port-range .*FIRST:LAST"):
            make_config(LaunchConfig, port_range=text)


CARDS = ["docker0", "exp0", "exp01", "lo"]
NAMED = [
    ("", "exp0", True), ("", "exp0,lo", True), ("", "exp", False), ("", "^lo", False),
    ("", "exp0,", True), ("0", "exp", True), ("0", "=exp0", True), ("0", "=exp", False),
    ("0", "^docker,lo", True), ("0", "^=lo", True), ("0", "ib", False), ("0", "ib,exp0", True),
    ("0", "^docker,exp,lo", False),
]  # fmt: skip


@pytest.mark.parametrize(("gpus", "value", "fits"), NAMED)
def test_cards_are_named_as_gloo_and_as_nccl_read_them(monkeypatch, gpus, value, fits):
    """A node with a GPU uses nccl."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    variable = "NCCL_SOCKET_IFNAME" if gpus else "GLOO_SOCKET_IFNAME"
    other = {"NCCL_SOCKET_IFNAME": "none0", "GLOO_SOCKET_IFNAME": "none0"}
    found = this_machine.absent_interface({**other, variable: value}, CARDS)
    assert found == (None if fits else variable)
    assert this_machine.absent_interface({}, CARDS) is None


NODES = "sys/class/kfd/kfd/topology/nodes"
CPU = "cpu_cores_count 64\nsimd_count 0\n"
GPU = "cpu_cores_count 0\nsimd_count 416\n"


@pytest.mark.parametrize(
    ("files", "count"),
    [
        ({}, 0),
        ({"proc/driver/nvidia/gpus/0000:01:00.0/x": "", "proc/driver/nvidia/gpus/b/x": ""}, 2),
        ({"dev/nvidia0": "", "dev/nvidia11": "", "dev/nvidiactl": "", "dev/nvidia-uvm": ""}, 2),
        # a container that may use one of two GPUs
        (
            {
                "dev/nvidia1": "",
                "proc/driver/nvidia/gpus/a/x": "",
                "proc/driver/nvidia/gpus/b/x": "",
            },
            1,
        ),
        ({f"{NODES}/0/properties": CPU, f"{NODES}/1/properties": GPU}, 1),
        ({"dev/dxg": "", "usr/lib/wsl/lib/libcuda.so": ""}, 1),
        ({"dev/dxg": ""}, 0),
    ],
)
def test_gpus_of_drivers_containers_rocm_and_wsl_are_counted(monkeypatch, tmp_path, files, count):
    for variable in VISIBLE:
        monkeypatch.delenv(variable, raising=False)
    write(tmp_path, files)
    assert this_machine.gpu_count(tmp_path) == count


VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


@pytest.mark.parametrize("variable", VISIBLE)
@pytest.mark.parametrize(("value", "count"), [("", 0), ("0, 2", 2), ("1,-1,2", 1), ("MIG-a", 1)])
def test_visible_gpus_of_cuda_and_rocm_decide(monkeypatch, tmp_path, variable, value, count):
    for other in VISIBLE:
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, value)
    write(tmp_path, {"dev/nvidia0": ""})
    assert this_machine.gpu_count(tmp_path) == count
