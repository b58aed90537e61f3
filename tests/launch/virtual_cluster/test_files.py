"""The files that daemons read, and what is read from daemons."""

import os
from pathlib import Path

import pytest
from jinja2 import UndefinedError

from launch.virtual_cluster import daemons, slurm_daemons, virtual_nodes
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.links import OUR_LINK, OUR_NAMESPACE
from launch.virtual_cluster.options import Options

HOSTS = virtual_nodes.of(Options(nodes=3, control_network=True), [0, 1])


def slurm_conf(gpus: int = 0) -> str:
    return render(
        "slurm.conf",
        nodes=HOSTS,
        short=HOSTS[:2],
        box="front",
        box_address="10.10.1.254",
        node_port=16818,
        folder=Path("/state/slurm"),
        socket=Path("/state/munge/socket"),
        gpus=gpus,
    )


def test_slurm_talks_over_the_experiment_network():
    lines = slurm_conf().splitlines()
    assert "SlurmctldHost=front(10.10.1.254)" in lines
    named = [line.split()[:3] for line in lines if line.startswith("NodeName=")]
    assert named == [
        [f"NodeName=node{k}", f"NodeAddr=10.10.1.{k + 1}", f"NodeHostname=node{k}"]
        for k in range(3)
    ]
    assert any(line.startswith("PartitionName=short Nodes=node0,node1 ") for line in lines)
    assert any("Default=YES Nodes=node0,node1,node2 " in line for line in lines)


def test_nodes_have_the_gpus_that_are_pretended():
    assert "gpu" not in slurm_conf()
    lines = slurm_conf(gpus=2).splitlines()
    assert "GresTypes=gpu" in lines
    assert [line.split()[-2] for line in lines if line.startswith("NodeName=")] == [
        "Gres=gpu:2"
    ] * 3


def test_names_resolve_on_the_control_network():
    text = render("hosts", nodes=HOSTS, box="front", box_address="192.168.77.254")
    assert text.splitlines() == [
        "127.0.0.1 localhost",
        "192.168.77.1 node0",
        "192.168.77.2 node1",
        "192.168.77.3 node2",
        "192.168.77.254 front",
    ]


def test_ssh_knows_each_host_by_name_and_checks_it():
    text = render("ssh_config", nodes=HOSTS, folder=Path("/state/ssh"), key=Path("/state/ssh/key"))
    words = [line.split() for line in text.splitlines()]
    assert ["HostName", "192.168.77.2"] in words
    assert ["StrictHostKeyChecking", "yes"] in words
    assert ["IdentityFile", "/state/ssh/key"] in words


def test_sshd_listens_on_the_addresses_of_its_node():
    text = render("sshd_config", node=HOSTS[1], folder=Path("/f"), host_key=Path("/f/key"))
    listens = [line for line in text.splitlines() if line.startswith("ListenAddress")]
    assert listens == ["ListenAddress 10.10.1.2", "ListenAddress 192.168.77.2"]


def test_a_value_that_is_not_given_is_no_blank():
    with pytest.raises(UndefinedError):
        render("hosts", nodes=HOSTS, box="front")


def test_states_come_from_lines_of_sinfo():
    assert slurm_daemons.parsed("node0 idle\nnode0 idle\nnode1 down*\n") == {
        "node0": "idle",
        "node1": "down*",
    }
    assert slurm_daemons.parsed("") == {}
    assert slurm_daemons.is_usable("mixed") and not slurm_daemons.is_usable("idle*")


def test_only_what_has_our_names_is_ours():
    assert OUR_NAMESPACE.fullmatch("muster-node12") and OUR_LINK.fullmatch("muster-exp0")
    for foreign in ("muster-nodes", "muster-node", "my-muster-node0", "docker0", "muster-exp0x"):
        assert not OUR_NAMESPACE.fullmatch(foreign) and not OUR_LINK.fullmatch(foreign)


def test_a_process_is_known_by_when_it_began(monkeypatch, tmp_path):
    monkeypatch.setattr(daemons, "RECORDS", tmp_path)
    began = daemons.started_at(os.getpid())
    (tmp_path / "own.json").write_text(f'{{"pid": {os.getpid()}, "started": {began}}}')
    (tmp_path / "reused.json").write_text(f'{{"pid": {os.getpid()}, "started": 1}}')
    (tmp_path / "cut.json").write_text('{"pid":')
    assert daemons.pid("own") == os.getpid()
    assert daemons.pid("reused") is None and daemons.pid("cut") is None
    assert daemons.recorded() == [os.getpid()]


def test_a_zombie_is_not_alive():
    child = os.fork()
    if child == 0:
        os._exit(0)
    try:
        while daemons.started_at(child) is not None:
            pass
    finally:
        os.waitpid(child, 0)
