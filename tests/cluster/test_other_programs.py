"""Programs that others have written, unchanged, on real Slurm and over real ssh: all ranks meet."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import test_programs
from tests.cluster.test_programs import ended_ranks, only_run, start
from tests.cluster.testbeds import REPOSITORY
from tests.cluster.ways import SBATCH, finish

PROGRAMS = Path(__file__).with_name("programs")
ACCELERATE = "accelerate.test_utils.scripts."
WAYS = ("ssh", "script", "slurm")
FAILS = "ValueError: sample 17 is empty"


@dataclass(frozen=True)
class Program:
    """What is started, in which way in an ordinary run, and what says that all have met."""

    words: tuple[str, ...]
    way: str
    met: str
    flags: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    error: str = FAILS
    size: tuple[int, int] = (4, 2)  # nodes, and workers of each
    # Costs tens of seconds of two cores, and says little that another one does not.
    ordinary: bool = True


BY_HAND = ("--workers", "manual")
PROGRAM = {
    "ddp": Program(("train.py",), "slurm", "World: 8", failing=("--fail", "5"), ordinary=False),
    "fsdp2": Program(
        ("fsdp2.py",), "script", "rank 0 of 8: step 2", failing=("--fail", "5"), ordinary=False
    ),
    "trainer": Program(
        ("text_classification.py",),
        "ssh",
        "process 0 of 8: 3 steps, DistributedType.MULTI_CPU, batch 16",
        failing=("--fail", "5"),
    ),
    "accelerate_ops": Program(("ops.py",), "ssh", "Num processes: 8", ordinary=False),
    # it names no number; this it does only in a group, which is one of WORLD_SIZE
    "accelerate_sync": Program(
        ("-m", f"{ACCELERATE}test_sync"),
        "slurm",
        "**Test Distributed `no_sync` context manager**",
        ordinary=False,
    ),
    # its data are for two processes: with more, without GPUs, it fails whoever starts it
    "accelerate_script": Program(
        ("-m", f"{ACCELERATE}test_script"),
        "script",
        "Num processes: 2",
        size=(2, 1),
        ordinary=False,
    ),
    "mpi_hello": Program(
        ("hello_mpi.py",),
        "script",
        "Hello world from process 7 of 8",
        BY_HAND,
        failing=("--fail", "5"),
    ),
    "shell": Program(
        ("./hello.sh",),
        "ssh",
        "process 0 of 8",
        BY_HAND,
        failing=("5",),
        error="hello.sh: exit code 3",
    ),
}


def ways_of(name: str) -> list[str]:
    if "WHOLE_MATRIX" in os.environ:
        return list(WAYS)
    return [PROGRAM[name].way] if PROGRAM[name].ordinary else []


RUNS = [(name, way) for name in PROGRAM for way in ways_of(name)]
FAILING = [(name, way) for name, way in RUNS if PROGRAM[name].failing]
if "WHOLE_MATRIX" not in os.environ:  # without torch: they cost least
    FAILING = [(name, way) for name, way in FAILING if PROGRAM[name].flags == BY_HAND]


@pytest.fixture
def project(tmp_path) -> Path:
    """A repository with the programs in it."""
    root = tmp_path / "project"
    shutil.copytree(PROGRAMS, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("logs/\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return root


def run(cluster, project: Path, name: str, way: str, *more: str) -> tuple[int, str]:
    """The exit code, and all that was printed, by whom and wherever."""
    program = PROGRAM[name]
    nodes, per_node = program.size
    words = ["--nproc-per-node", str(per_node), *program.flags, "--", *program.words, *more]
    if way == "script" and program.flags == BY_HAND:  # the file says who starts the workers
        size = [f"--nodes={nodes}", f"--ntasks-per-node={per_node}", f"--output={project}/job.out"]
        file = str(REPOSITORY / "slurm" / "multinode_manual.sh")
        argv = [*SBATCH, *size, file, "--", *program.words, *more]
    elif way == "ssh":
        argv = test_programs.ssh(cluster, "--nodes", str(nodes), *words)
    elif way == "slurm":
        argv = test_programs.slurm("--nodes", str(nodes), *words)
    else:
        argv = test_programs.script(project, *words, nodes=nodes)
    code, out, err = finish(start(cluster, project, argv), timeout_s=300)
    job = project / "job.out"
    return code, out + err + (job.read_text() if job.exists() else "")


@pytest.mark.timeout(330)
@pytest.mark.parametrize(("name", "way"), RUNS)
def test_all_processes_of_another_program_meet(cluster, project, name, way):
    code, printed = run(cluster, project, name, way)
    assert code == 0, printed
    run_dir = only_run(project)
    assert ended_ranks(run_dir) == list(range(PROGRAM[name].size[0] * PROGRAM[name].size[1]))
    assert PROGRAM[name].met in (run_dir / "workers" / "rank_00000.out").read_text(), printed
    assert PROGRAM[name].met in printed


@pytest.mark.timeout(330)
@pytest.mark.parametrize(("name", "way"), FAILING)
def test_the_failure_of_another_program_is_its_own(cluster, project, name, way):
    code, printed = run(cluster, project, name, way, *PROGRAM[name].failing)
    assert code != 0
    end = json.loads((only_run(project) / "exit.json").read_text())
    assert PROGRAM[name].error in end["message"], printed
