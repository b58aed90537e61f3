"""Programs that others have written, unchanged, on real Slurm and over real ssh: all ranks meet."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL, WAYS, WHOLE
from tests.train.workers import read_json

if not WHOLE:  # there each begins with a Python that nothing was imported into
    pytestmark = pytest.mark.usefixtures("warm_workers")

FAILS = "ValueError: sample 17 is empty"


@dataclass(frozen=True)
class Program:
    """What is started, in which way in an ordinary run, and what says that all have met."""

    words: tuple[str, ...]
    way: str
    met: str
    flags: tuple[str, ...] = ()
    failing: str = ""  # the way in which it fails in an ordinary run; "": in none


PROGRAM = {
    "ddp": Program(("train.py",), "slurm", "World: 8"),
    "ddp, one import": Program(
        ("train.py",), "ssh", "World: 8", ("--workers", "preload"), failing="ssh"
    ),
    "fsdp2": Program(("fsdp2.py",), "sbatch", "rank 0 of 8: step 2"),
    "trainer": Program(
        ("text_classification.py",),
        "ssh",
        "process 0 of 8: 3 steps, DistributedType.MULTI_CPU, batch 16",
    ),
    # torchrun's layout, on Slurm too: Slurm's own has one task for each node here
    "lightning": Program(
        ("lightning_regression.py",),
        "slurm",
        "rank 0 of 8: 3 steps, TorchElasticEnvironment, 8 batches",
    ),
    "accelerate": Program(("accelerate_test.py",), "sbatch", "test_script on 8 processes"),
    "mpi_hello": Program(
        ("hello_mpi.py",),
        "sbatch",
        "Hello world from process 7 of 8",
        tuple(MANUAL),
        failing="slurm",
    ),
}
RUNS = [(name, way) for name, one in PROGRAM.items() for way in (WAYS if WHOLE else [one.way])]
FAILING = RUNS if WHOLE else [(name, one.failing) for name, one in PROGRAM.items() if one.failing]


def run(cluster, project: Path, name: str, way: str, *more: str) -> tuple[int, str]:
    """The exit code, and all that was printed, by whom and wherever."""
    program = PROGRAM[name]
    words = ["--nproc-per-node", "2", *program.flags, "--", *program.words, *more]
    code, out, err = ways.call(cluster, WAYS[way](cluster, 4, *words), project)
    job = project / "job.out"
    return code, out + err + (job.read_text() if job.exists() else "")


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_all_processes_of_another_program_meet(cluster, project, name, way):
    code, printed = run(cluster, project, name, way)
    assert code == 0, printed
    run_dir = ways.only_run(project / "logs")
    ranks = sorted(read_json(path)["rank"] for path in run_dir.glob("exits/*.json"))
    assert ranks == list(range(8))
    met = PROGRAM[name].met
    assert met in (run_dir / "workers" / "rank_00000.out").read_text(), printed
    assert met in printed


@pytest.mark.parametrize(("name", "way"), FAILING)
def test_the_failure_of_another_program_is_its_own(cluster, project, name, way):
    code, printed = run(cluster, project, name, way, "--fail", "5")
    assert code != 0
    message = read_json(ways.only_run(project / "logs") / "exit.json")["message"]
    assert FAILS in message.splitlines()[-1], printed
    # what rank 5 has printed with its name before it is not said again
    assert "error: rank 5 on node2" in printed or f"node2.5| {FAILS}" in printed
    lines = [line for line in printed.splitlines() if line and not line.startswith("made in ")]
    assert lines[-1].endswith(message.splitlines()[-1]), printed[-2000:]
