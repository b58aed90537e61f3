"""What a study does around its runs: collectives measured before, predictions and report after."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs import cli
from configs.plugins import REPOSITORY
from launch.spec import RUN_MODULE
from launch.studies import cell_process
from launch.studies.study_file import Study
from muster.run_files import COLLECTIVES

SUBMIT = str(REPOSITORY / "launch" / "submit.py")
FOLDER = "collectives"


def collectives(
    study: Study,
    rate: str | None,
    nodes: int,
    folder: Path,
    more: Sequence[str],
    env: Mapping[str, str],
) -> int:
    """Measure the study's collectives on `nodes` nodes, unless that is done; its exit code.

    A failure is printed, and the study goes on without predictions.
    """
    name = rate or "network"
    if COLLECTIVES.path(folder / FOLDER / name).exists():
        return 0
    bench = ["--program=bench_collectives", f"--operations={','.join(study.collectives)}"]
    place = [f"--logs-dir={folder / FOLDER}", f"--run-id={name}", "--overwrite", "--quiet"]
    print(f"collectives: measuring {', '.join(study.collectives)}", flush=True)
    words = [sys.executable, SUBMIT, f"--nodes={nodes}", *bench, *place, *cli.for_bench(more)]
    log = folder / "logs" / f"collectives-{name}.log"
    code = cell_process.run(words, env, log)
    if code:
        why = cell_process.last_message(log) or f"exit code {code}"
        print(f"collectives: not measured: {why}; see {log}", file=sys.stderr)
    return code


def predictions(folder: Path) -> None:
    """What steps must cost, beside what they did; from collectives of one network."""
    found = sorted((folder / FOLDER).glob(f"*/{COLLECTIVES.pattern}"))
    if len(found) != 1:
        return
    done = _run_module(["train.cost", str(folder), f"--collectives={found[0]}"])
    if done.returncode:
        print(f"no prediction: {cell_process.last_line(done.stderr)}", file=sys.stderr)


def report(folder: Path) -> None:
    """The report of what is done; where it fails, the study does not."""
    done = _run_module(["train.report", str(folder)])
    print(cell_process.last_line(done.stderr if done.returncode else done.stdout))


def _run_module(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, RUN_MODULE, *words],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
