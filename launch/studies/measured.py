"""What a study does around its runs: collectives measured before, predictions and report after."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from configs.plugins import REPOSITORY
from launch.studies.grid import Study

SUBMIT = str(REPOSITORY / "launch" / "submit.py")
FOLDER, FILE = "collectives", "collectives.json"


def collectives(
    study: Study,
    rate: str | None,
    nodes: int,
    folder: Path,
    more: Sequence[str],
    env: Mapping[str, str],
) -> None:
    """Measure the study's collectives on `nodes` nodes, unless that is done; say so if it fails."""
    name = rate or "network"
    if (folder / FOLDER / name / FILE).exists():
        return
    bench = ["--program=bench_collectives", f"--operations={','.join(study.collectives)}"]
    place = [f"--logs-dir={folder / FOLDER}", f"--run-id={name}", "--overwrite", "--quiet"]
    print(f"collectives: measuring {', '.join(study.collectives)}", flush=True)
    said = _said([SUBMIT, f"--nodes={nodes}", *bench, *place, *more], env)
    if said.returncode:
        print(f"collectives: not measured: {_last(said.stderr)}", file=sys.stderr)


def predictions(folder: Path) -> None:
    """What steps must cost, beside what they did; from collectives of one network."""
    found = sorted((folder / FOLDER).glob(f"*/{FILE}"))
    if len(found) != 1:
        return
    said = _said(["-m", "train.cost", str(folder), f"--collectives={found[0]}"])
    if said.returncode:
        print(f"no prediction: {_last(said.stderr)}", file=sys.stderr)


def report(folder: Path) -> None:
    """The report of what is done; a study whose report fails is a study none the less."""
    said = _said(["-m", "train.report", str(folder)])
    print(_last(said.stdout) if said.returncode == 0 else _last(said.stderr))


def _said(
    words: Sequence[str], env: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *words],
        cwd=REPOSITORY,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]
