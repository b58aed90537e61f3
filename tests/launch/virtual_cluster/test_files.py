"""The files that daemons read, and what is read from daemons."""

import os
from pathlib import Path

from launch.virtual_cluster import daemons, slurm_daemons, virtual_nodes
from launch.virtual_cluster.daemons import render
from launch.virtual_cluster.links import OUR_LINK, OUR_NAMESPACE
from launch.virtual_cluster.virtual_nodes import Options

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


def test_nodes_have_the_gpus_that_are_pretended():
    assert "gpu" not in slurm_conf()
    lines = slurm_conf(gpus=2).splitlines()
    assert "GresTypes=gpu" in lines
    assert [line.split()[-2] for line in lines if line.startswith("NodeName=")] == [
        "Gres=gpu:2"
    ] * 3


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
