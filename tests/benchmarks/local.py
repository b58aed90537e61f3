"""One short run of the benchmark's task on this machine, and what it leaves."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs.plugins import REPOSITORY

SUBMIT = str(REPOSITORY / "launch" / "submit.py")
FLAGS = [
    "--launcher=local", "--nodes=1", "--task=bsc_benchmark", "--no-save-model", "--quiet",
    "--threads=1", "--run-id=run",
]  # fmt: skip
MIB = 2**20


@contextmanager
def ran(
    mode: str,
    ranks: int,
    model: str,
    batch_size: int,
    words: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> Iterator[Path]:
    """The folder of a run with the flags `words`; a run that fails ends the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        own = [f"--nproc-per-node={ranks}", f"--sync={mode}", f"--model={model}"]
        own += [f"--batch-size={batch_size}", f"--logs-dir={folder}"]
        command = [sys.executable, SUBMIT, *FLAGS, *own, *words]
        done = subprocess.run(command, cwd=REPOSITORY, env=env or os.environ, check=False)
        if done.returncode:
            sys.exit(f"{mode} on {ranks} ranks: exit code {done.returncode}")
        yield Path(folder) / "run"


def peaks_mib(run: Path) -> list[float]:
    """What each rank held at most, in MiB."""
    exits = (run / "exits").glob("rank_*.json")
    return [json.loads(path.read_text())["peak_memory_bytes"] / MIB for path in exits]
