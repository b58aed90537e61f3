"""Programs that others have written, unchanged, on real Slurm and over real ssh: all ranks meet."""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import test_programs
from tests.cluster.test_programs import ended_ranks, only_run, start
from tests.cluster.ways import finish

PROGRAMS = Path(__file__).with_name("programs")
WAYS = ("ssh", "script", "slurm")
WHOLE = "WHOLE_MATRIX" in os.environ
FAILING_ORDINARILY = ("ddp", "mpi_hello")
FAILS = "ValueError: sample 17 is empty"


@dataclass(frozen=True)
class Program:
    """What is started, in which way in an ordinary run, and what says that all have met."""

    words: tuple[str, ...]
    way: str
    met: str
    failing: tuple[str, ...]  # the words with which rank 5 fails
    flags: tuple[str, ...] = ()


BY_HAND = ("--workers", "manual")
FAIL = ("--fail", "5")
LIGHTNING = ("lightning_regression.py", "--nodes", "4", "--devices", "2")
PROGRAM = {
    "ddp": Program(("train.py",), "slurm", "World: 8", ("train.py", *FAIL)),
    "fsdp2": Program(("fsdp2.py",), "script", "rank 0 of 8: step 2", ("fsdp2.py", *FAIL)),
    "trainer": Program(
        ("text_classification.py",),
        "ssh",
        "process 0 of 8: 3 steps, DistributedType.MULTI_CPU, batch 16",
        ("text_classification.py", *FAIL),
    ),
    # torchrun's layout, on Slurm too: Slurm's own has one task for each node here
    "lightning": Program(
        LIGHTNING,
        "slurm",
        "rank 0 of 8: 3 steps, TorchElasticEnvironment, 8 batches",
        (*LIGHTNING, *FAIL),
    ),
    "accelerate": Program(
        ("accelerate_test.py",),
        "script",
        "test_script on 8 processes",
        ("accelerate_test.py", *FAIL),
    ),
    "mpi_hello": Program(
        ("hello_mpi.py",),
        "script",
        "Hello world from process 7 of 8",
        ("hello_mpi.py", *FAIL),
        BY_HAND,
    ),
}


def ways_of(name: str) -> list[str]:
    return list(WAYS) if WHOLE else [PROGRAM[name].way]


def failing_ways_of(name: str) -> list[str]:
    """In an ordinary run a few, through the way after the one in which the program succeeds."""
    if not (WHOLE or name in FAILING_ORDINARILY):
        return []
    next_one = {"ssh": "script", "script": "slurm", "slurm": "ssh"}
    return [way if WHOLE else next_one[way] for way in ways_of(name)]


RUNS = [(name, way) for name in PROGRAM for way in ways_of(name)]
FAILING = [(name, way) for name in PROGRAM for way in failing_ways_of(name)]


@pytest.fixture
def _python_of_nodes(request, name: str, way: str) -> None:
    """In the whole table each program runs once with a Python that nothing was imported into."""
    if not (WHOLE and way == PROGRAM[name].way):
        request.getfixturevalue("warm_workers")


@pytest.fixture
def project(tmp_path) -> Path:
    """A repository with the programs in it."""
    root = tmp_path / "project"
    shutil.copytree(PROGRAMS, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("logs/\n")
    test_programs.track(root)
    return root


def run(cluster, project: Path, program: Program, way: str, argv: tuple[str, ...]):
    """The exit code, and all that was printed, by whom and wherever."""
    words = ["--nproc-per-node", "2", *program.flags, "--", *argv]
    command = {
        "ssh": lambda: test_programs.ssh(cluster, "--nodes", "4", *words),
        "slurm": lambda: test_programs.slurm("--nodes", "4", *words),
        "script": lambda: test_programs.script(project, *words),
    }[way]()
    code, out, err = finish(start(cluster, project, command), timeout_s=300)
    job = project / "job.out"
    return code, out + err + (job.read_text() if job.exists() else "")


@pytest.mark.usefixtures("_python_of_nodes")
@pytest.mark.parametrize(("name", "way"), RUNS)
def test_all_processes_of_another_program_meet(cluster, project, name, way):
    program = PROGRAM[name]
    code, printed = run(cluster, project, program, way, program.words)
    assert code == 0, printed
    run_dir = only_run(project)
    assert ended_ranks(run_dir) == list(range(8))
    assert program.met in (run_dir / "workers" / "rank_00000.out").read_text(), printed
    assert program.met in printed


@pytest.mark.parametrize(("name", "way"), FAILING)
def test_the_failure_of_another_program_is_its_own(warm_workers, cluster, project, name, way):
    program = PROGRAM[name]
    code, printed = run(cluster, project, program, way, program.failing)
    assert code != 0
    message = json.loads((only_run(project) / "exit.json").read_text())["message"]
    assert FAILS in message.splitlines()[-1], printed
    # what rank 5 has printed with its name before it is not said again
    assert "error: rank 5 on node2" in printed or f"node2.5| {FAILS}" in printed
    lines = [line for line in printed.splitlines() if line and not line.startswith("made in ")]
    assert lines[-1].endswith(message.splitlines()[-1]), printed[-2000:]
