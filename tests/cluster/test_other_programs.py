"""Unchanged programs by other authors, on real Slurm and over real ssh: all ranks meet."""

import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster import ways
from tests.cluster.ways import WAYS
from tests.commands import cause_in
from tests.fork_server import interpreter
from tests.launch.submit import only_run
from tests.train.workers import read_json

SLOW = pytest.mark.slow
FAILS = "ValueError: sample 17 is empty"
UNFORKED = ("--python", sys.executable)  # --workers preload has a pipe to its agent


class Program(NamedTuple):
    """What is started, in which way, and the output that shows that all have met."""

    file: str
    way: str
    met: str
    flags: tuple[str, ...] = ()


PROGRAM = {
    "ddp": Program("train.py", "slurm", "World: 8"),
    "ddp, one import": Program("train.py", "ssh", "World: 8", ("--workers", "preload", *UNFORKED)),
    "fsdp2": Program("fsdp2.py", "sbatch", "rank 0 of 8: step 2"),
    "trainer": Program(
        "text_classification.py",
        "ssh",
        "process 0 of 8: 3 steps, DistributedType.MULTI_CPU, batch 16",
    ),
    # on Slurm, where it would also find srun's variables
    "lightning": Program(
        "lightning_demo.py", "slurm", "rank 0 of 8: 3 steps, TorchElasticEnvironment, 8 batches"
    ),
    "accelerate": Program("accelerate_test.py", "sbatch", "test_script on 8 processes"),
}
NAMES = [name if name == "ddp" else pytest.param(name, marks=SLOW) for name in PROGRAM]


def run_program(cluster, project: Path, name: str, *more: str) -> tuple[int, str]:
    """Run a program; return the exit code, and everything that was printed anywhere."""
    way = PROGRAM[name].way
    words = ["--nproc-per-node", "2", *PROGRAM[name].flags, "--", PROGRAM[name].file, *more]
    code, out, err = ways.call(cluster, WAYS[way](cluster, 4, *words), project)
    job = project / "job.out"
    return code, out + err + (job.read_text() if job.exists() else "")


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("name", NAMES)
def test_all_processes_of_another_program_meet(cluster, project, name):
    code, printed = run_program(cluster, project, name)
    assert code == 0, printed
    run_dir = only_run(project / "logs")
    ranks = sorted(read_json(path)["rank"] for path in run_dir.glob("exits/*.json"))
    assert ranks == list(range(8))
    met = PROGRAM[name].met
    assert met in (run_dir / "workers" / "rank_00000.out").read_text(), printed
    assert met in printed


@SLOW
@pytest.mark.usefixtures("forked_workers")
def test_the_failure_of_another_program_is_its_own(cluster, project):
    code, printed = run_program(cluster, project, "ddp", "--fail", "5")
    assert code != 0
    message = read_json(only_run(project / "logs") / "exit.json")["message"]
    assert FAILS in message.splitlines()[-1], printed
    # what rank 5 has already printed, with its name in front, is not repeated
    assert "error: rank 5 on node2" in printed or f"node2.5| {FAILS}" in printed
    assert cause_in(printed).endswith(message.splitlines()[-1]), printed[-2000:]


TASK = [
    *("PROCID", "LOCALID", "NODEID", "GTIDS", "NTASKS", "NPROCS", "NNODES", "NTASKS_PER_NODE"),
    *("TASKS_PER_NODE", "STEP_NUM_TASKS", "STEP_NUM_NODES", "STEP_TASKS_PER_NODE"),
    *("CPUS_PER_TASK",),
]
# It takes its rank from Slurm, as Ignite's `idist` does.
SLURM_FIRST = f"""
import os
print([os.environ.get("SLURM_" + name) for name in {TASK}], flush=True)
if "MASTER_ADDR" in os.environ:
    import torch
    rank, size = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"])
    torch.distributed.init_process_group("gloo", rank=rank, world_size=size)
    ranks = [None] * size
    torch.distributed.all_gather_object(ranks, rank)
    print(ranks)
"""


@SLOW
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("workers", ["torchrun", "manual", "accelerate", "preload"])
def test_each_worker_is_a_task_to_a_program_for_srun(cluster, tmp_path, workers):
    (tmp_path / "slurm_first.py").write_text(SLURM_FIRST)
    step = ["srun", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=1"]
    by_srun = cluster.run(*step, interpreter(), str(tmp_path / "slurm_first.py"))
    flags = ["--nproc-per-node", "2", "--cpus-per-task", "2", "--workers", workers]
    flags += UNFORKED if workers == "preload" else []
    ways.succeed(cluster, ways.slurm(cluster, 2, *flags, "--", "slurm_first.py"), tmp_path)
    outputs = sorted(only_run(tmp_path / "logs").glob("workers/*.out"))
    printed = [path.read_text().splitlines() for path in outputs]
    assert [task for task, _ in printed] == sorted(by_srun.stdout.splitlines())
    assert [group for _, group in printed] == ["[0, 1, 2, 3]"] * 4
