"""The same job gives the same losses, digit for digit, whatever starts its workers."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL, SHORT, by_hand
from tests.launch.submit import only_run, run_well
from tests.train.workers import losses

pytestmark = pytest.mark.usefixtures("forked_workers")

WAYS = {
    "multinode.sh": ways.sbatch("multinode.sh"),
    "multinode_manual.sh": ways.sbatch("multinode_manual.sh"),
    "slurm": ways.slurm,
    "slurm-manual": lambda *given: [*ways.slurm(*given), *MANUAL],
    "ssh": ways.ssh,
    "ssh-manual": lambda *given: [*ways.ssh(*given), *MANUAL],
    "by-hand": None,
}
# Four nodes for the most used mode; two are enough to check that other modes are started correctly.
NODES = {"single": 1, "ddp": 4}
SLOW = pytest.mark.slow
# ddp is started in all ways, each other mode in one of them.
ONCE = [
    ("gather_scatter", "ssh"),
    ("all_reduce", "multinode_manual.sh"),
    ("accelerate", "multinode.sh"),
    ("fsdp", "slurm-manual"),
]
RUNS = [
    *(("ddp", way) for way in WAYS if way != "slurm-manual"),
    pytest.param("ddp", "slurm-manual", marks=SLOW),
    *(pytest.param(*one, marks=SLOW) for one in ONCE),
]


def losses_of_run(cluster, way, nodes: int, folder: Path, *more: str) -> list[float]:
    folder.mkdir()
    if way is None:
        return by_hand(cluster, nodes, folder, *more)
    ways.succeed(cluster, way(cluster, nodes, *SHORT, "--logs-dir", str(folder), *more))
    return losses(only_run(folder))


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A function that returns a mode's losses on this machine, running each mode once."""

    @cache
    def losses_of(sync: str) -> list[float]:
        folder = tmp_path_factory.mktemp("local")
        nodes = ["--nodes", str(NODES.get(sync, 2)), "--sync", sync]
        run_well("--launcher", "local", *nodes, *SHORT, "--logs-dir", str(folder))
        return losses(only_run(folder))

    return losses_of


@pytest.mark.parametrize(("sync", "way"), RUNS)
def test_the_same_losses_whatever_starts_the_workers(cluster, local, sync, way, tmp_path):
    expected = local(sync)
    assert len(expected) == 4 and len(set(expected)) == 4
    nodes = NODES.get(sync, 2)
    assert losses_of_run(cluster, WAYS[way], nodes, tmp_path / "logs", "--sync", sync) == expected


@SLOW
@pytest.mark.parametrize(
    ("script", "nodes", "sync", "count"),
    [("accelerate.sh", 2, "accelerate", 2), ("singlenode.sh", 1, "ddp", 3)],
)
def test_scripts_for_one_node_start_several_workers(cluster, tmp_path, script, nodes, sync, count):
    more = ["--nproc-per-node", str(count), "--sync", sync]
    expected = losses_of_run(cluster, ways.local, nodes, tmp_path / "a", *more)
    assert losses_of_run(cluster, ways.sbatch(script), nodes, tmp_path / "b", *more) == expected


@SLOW
def test_nodes_with_different_numbers_of_workers_have_the_same_losses(cluster, tmp_path):
    """torchrun says that this is impossible, but it works."""
    (tmp_path / "hosts.txt").write_text("node0 slots=2\nnode1 slots=1\n")

    def by_file(cluster, nodes, *flags):
        hosts = str(tmp_path / "hosts.txt")
        return [ways.SSH, hosts, "--ssh-config", str(cluster.ssh_config), *flags]

    def three_tasks(cluster, nodes, *flags):
        script = WAYS["multinode_manual.sh"](cluster, nodes, *flags)
        return [*script[:2], "--ntasks=3", "--ntasks-per-node=2", *script[2:]]

    uneven = ["--nproc-per-node", "2,1"]
    expected = losses_of_run(cluster, ways.local, 2, tmp_path / "local", *uneven)
    for name, way, more in (
        ("multinode.sh", WAYS["multinode.sh"], uneven),
        ("slurm", ways.slurm, uneven),
        ("ssh", by_file, []),
        ("ssh-manual", by_file, MANUAL),
        ("multinode_manual.sh", three_tasks, []),
    ):
        assert losses_of_run(cluster, way, 2, tmp_path / name, *more) == expected, name


@SLOW
def test_job_queued_inside_a_job_runs_separately(cluster, tmp_path):
    inner = ways.slurm(cluster, 2, *SHORT, "--logs-dir", str(tmp_path), "--run-id", "inner")
    script = tmp_path / "outer.sh"
    script.write_text(f"#!/bin/bash\nenv -u SLURM_JOB_ID {subprocess.list2cmdline(inner)}\n")
    output = f"--output={tmp_path / 'out'}"
    ways.succeed(cluster, [*ways.SBATCH, "--nodes=1", "--ntasks=1", output, str(script)])
    assert len(losses(tmp_path / "inner")) == 4
    assert len(list((tmp_path / "inner" / "agents").glob("node_?????.json"))) == 2
