"""The same job gives the same losses, digit for digit, whatever starts its workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from configs import plugins
from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY, TESTBED
from tests.cluster.ways import finish, start
from tests.preload import interpreter
from tests.train.workers import losses

pytestmark = pytest.mark.usefixtures("warm_workers")

FLAGS = ["--task", "synthetic", "--max-steps", "6", "--evaluate", "never", "--threads", "1"]
WAYS = {
    "multinode.sh": ways.sbatch("multinode.sh"),
    "multinode_manual.sh": ways.sbatch("multinode_manual.sh"),
    "slurm": ways.slurm,
    "slurm-manual": lambda *given: [*ways.slurm(*given), "--workers", "manual"],
    "ssh": ways.ssh,
    "ssh-manual": lambda *given: [*ways.ssh(*given), "--workers", "manual"],
    "by-hand": None,
}
# Four nodes for the mode that most use; two are enough to tell whether another is started right.
NODES = {"single": 1, "ddp": 4}


def reference(cluster, nodes: int, sync: str, folder: Path) -> list[float]:
    return run(cluster, ways.local, nodes, sync, folder)


def run(cluster, way, nodes: int, sync: str, folder: Path, *more: str) -> list[float]:
    folder.mkdir()
    flags = [*FLAGS, "--sync", sync, "--logs-dir", str(folder), *more]
    code, out, err = finish(start(cluster, way(cluster, nodes, *flags)))
    output = folder / "job.out"
    assert code == 0, out + err + (output.read_text() if output.exists() else "")
    (run_dir,) = (path.parent for path in folder.glob("*/config.yaml"))
    return losses(run_dir)


def by_hand(cluster, nodes: int, sync: str, folder: Path) -> list[float]:
    """One command on each node, as the courses have it."""
    where = ["--master-ip", "10.10.1.1", "--master-port", "6585", "--world-size", str(nodes)]
    flags = [*FLAGS, "--sync", sync, "--logs-dir", str(folder), "--run-id", "by-hand", *where]
    on_node, worker = [sys.executable, TESTBED, "exec"], [interpreter(), "-m", "train.worker"]
    workers = [
        start(cluster, [*on_node, f"node{rank}", "--", *worker, *flags, "--rank", str(rank)])
        for rank in range(nodes)
    ]
    for worker in workers:
        code, _, err = finish(worker)
        assert code == 0, err
    return losses(folder / "by-hand")


def ways_of(sync: str) -> dict[str, object]:
    """All of them for ddp; of the others in an ordinary run each mode meets one, in turns."""
    if sync == "ddp" or "WHOLE_MATRIX" in os.environ:
        return WAYS
    first = plugins.names("train.sync.modes").index(sync)
    name = [*WAYS, *WAYS][first]
    return {name: WAYS[name]}


@pytest.mark.parametrize("sync", plugins.names("train.sync.modes"))
def test_the_same_losses_whatever_starts_the_workers(cluster, sync, tmp_path):
    nodes = NODES.get(sync, 2)
    expected = reference(cluster, nodes, sync, tmp_path / "local")
    assert len(expected) == 6 and len(set(expected)) == 6
    for name, way in ways_of(sync).items():
        folder = tmp_path / name
        found = (
            by_hand(cluster, nodes, sync, folder)
            if way is None
            else run(cluster, way, nodes, sync, folder)
        )
        assert found == expected, name


@pytest.mark.parametrize(
    ("script", "nodes", "sync", "count"),
    [("accelerate.sh", 2, "accelerate", 2), ("singlenode.sh", 1, "ddp", 3)],
)
def test_several_workers_of_a_node(cluster, tmp_path, script, nodes, sync, count):
    more = ["--nproc-per-node", str(count)]
    expected = run(cluster, ways.local, nodes, sync, tmp_path / "a", *more)
    assert run(cluster, ways.sbatch(script), nodes, sync, tmp_path / "b", *more) == expected


def test_nodes_with_different_numbers_of_workers(cluster, tmp_path):
    """torchrun says that it cannot, but it can."""
    uneven = ["--nproc-per-node", "2,1"]
    expected = run(cluster, ways.local, 2, "ddp", tmp_path / "local", *uneven)
    found = {"multinode.sh": run(cluster, WAYS["multinode.sh"], 2, "ddp", tmp_path / "s", *uneven)}
    found["slurm"] = run(cluster, ways.slurm, 2, "ddp", tmp_path / "submitit", *uneven)

    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0 slots=2\nnode1 slots=1\n")

    def ssh(cluster, nodes, *flags):
        return [ways.SSH, str(hosts), "--ssh-config", str(cluster.ssh_config), *flags]

    found["ssh"] = run(cluster, ssh, 2, "ddp", tmp_path / "ssh")
    found["ssh-manual"] = run(cluster, ssh, 2, "ddp", tmp_path / "m", "--workers", "manual")

    def three_tasks(cluster, nodes, *flags):
        script = ways.sbatch("multinode_manual.sh")(cluster, nodes, *flags)
        return [*script[:2], "--ntasks=3", "--ntasks-per-node=2", *script[2:]]

    found["multinode_manual.sh"] = run(cluster, three_tasks, 2, "ddp", tmp_path / "manual")
    assert found == dict.fromkeys(found, expected)


def test_a_sweep_takes_a_program_too_and_refuses_a_point_that_is_none(cluster, tmp_path):
    (tmp_path / "train.py").write_text("import sys; print(sys.argv[1:])")
    output = tmp_path / "%a.out"
    argv = [*ways.SBATCH, "--array=1,18", f"--output={output}"]
    argv += [str(REPOSITORY / "slurm" / "sweep.sh"), "--", "train.py", "--lr", "1"]
    code, _, err = finish(start(cluster, argv, tmp_path))
    outputs = [(tmp_path / f"{point}.out").read_text() for point in (1, 18)]
    assert code == 2 and "error: array index 18, but the grid has 18 points: " in outputs[1], err
    assert "['--lr', '1', '--batch-size', '128', '--precision', 'fp32']" in outputs[0]


def test_a_job_queued_from_inside_a_job_is_a_job_of_its_own(cluster, tmp_path):
    inner = ways.slurm(cluster, 2, *FLAGS, "--logs-dir", str(tmp_path), "--run-id", "inner")
    script = tmp_path / "outer.sh"
    script.write_text(f"#!/bin/bash\nenv -u SLURM_JOB_ID {subprocess.list2cmdline(inner)}\n")
    argv = [*ways.SBATCH, "--nodes=1", "--ntasks=1", f"--output={tmp_path / 'out'}"]
    code, out, err = finish(start(cluster, [*argv, str(script)]))
    assert code == 0, out + err + (tmp_path / "out").read_text()
    assert len(losses(tmp_path / "inner")) == 6
    assert len(list((tmp_path / "inner" / "agents").glob("node_?????.json"))) == 2
