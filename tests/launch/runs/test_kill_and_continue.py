"""Whatever is killed, at any moment, no checkpoint is lost, and no loss changes.

Each kind of kill is tried at one moment; `make soak` tries twenty.
"""

import os
import random
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from muster import run_files
from tests.fork_server import below, children, interpreter
from tests.launch.submit import alive, run_well, start, wait_until, worker
from tests.train.workers import losses_by_step

pytestmark = pytest.mark.slow

MOMENTS = range(int(os.environ.get("SOAK_MOMENTS", "1")))
NODES = 3
# There are so many checkpoints that a kill often interrupts the writing of one.
FLAGS = [
    "--launcher", "local", "--task", "synthetic", "--nodes", str(NODES), "--threads", "1",
    "--epochs", "5", "--evaluate", "never", "--checkpoint-every", "7", "--no-save-model",
]  # fmt: skip


KINDS = ["worker", "write", "agent", "node"]


def victims(
    kind: str, launcher: subprocess.Popen, run_dir: Path, chance: random.Random
) -> list[psutil.Process | None]:
    """Return the processes to kill; for "write", this is rank 0 while it writes a checkpoint."""
    agents = children(psutil.Process(launcher.pid))
    agent = chance.choice(agents) if agents else None
    match kind:
        case "worker":
            return [worker(launcher, chance.randrange(NODES))]
        case "agent":
            return [agent]
        case "node":
            return [agent, *below(agent)] if agent else []
    victim = worker(launcher, 0)
    deadline = time.monotonic() + 20
    while not any((run_dir / "checkpoints").glob("*.partial")) and time.monotonic() < deadline:
        pass
    time.sleep(chance.random() * 0.004)
    return [victim]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, float]:
    folder = tmp_path_factory.mktemp("whole")
    run_well(*FLAGS, "--logs-dir", str(folder), "--run-id", "whole")
    return losses_by_step(folder / "whole")


def finished(run_dir: Path) -> list[str]:
    paths = run_dir.glob("checkpoints/step_????????/manifest.json")
    return sorted(path.parent.name for path in paths)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kill_changes_nothing(tmp_path, whole, kind, moment):
    """One of three moments is tried with torchrun, the others without."""
    chance = random.Random(f"{kind} {moment}")
    workers = ["--workers", ("torchrun", "manual", "manual")[moment % 3]]
    process = start(
        *FLAGS, *workers, "--logs-dir", str(tmp_path), "--run-id", "run", "--max-restarts", "3",
        python=interpreter(),
    )  # fmt: skip
    run_dir = tmp_path / "run"
    wait_until(lambda: finished(run_dir))
    time.sleep(chance.random())
    before = finished(run_dir)
    found = victims(kind, process, run_dir, chance) if process.poll() is None else []
    for victim in filter(None, found):
        with suppress(psutil.NoSuchProcess):  # it has ended in the meantime
            victim.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    # if the kill came too late, the run was done; otherwise it continued from that checkpoint, or
    # from a later one
    if "attempt 2 of at most 4" in out:
        went_on = int(out.partition("resuming from step ")[2].partition(" ")[0])
        assert went_on >= int(before[-1].removeprefix("step_"))
    attempts = run_files.attempt_folders(run_dir).values()
    assert losses_by_step(*attempts, run_dir) == whole
    assert alive(tmp_path) == []
