"""Run `launch/submit.py` as a user does, and check which processes it leaves."""

import inspect
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from launch.agent.processes import process_tree
from muster import run_files
from muster.checkout import CHECKOUT
from tests import commands
from tests.fork_server import below, interpreter, skip_if_quick

SUBMIT = str(CHECKOUT / "launch" / "submit.py")
JOBS = str(CHECKOUT / "launch" / "jobs.py")
DOCTOR = str(CHECKOUT / "launch" / "doctor.py")
STUDY = str(CHECKOUT / "launch" / "study.py")
SWEEP = str(CHECKOUT / "launch" / "sweep.py")
# Flags for runs of the trainer that end soon, and for runs that do not end.
QUICK = ["--task", "synthetic", "--epochs", "1", "--threads", "1"]
ENDLESS = ["--task", "synthetic", "--epochs", "1000000", "--threads", "1"]


def start(
    *flags: str, cwd: str | Path = "/", before: Sequence[str] = (), python: str = sys.executable
) -> subprocess.Popen:
    """Start a run whose launcher and workers use `python`, also for a user's program."""
    skip_if_quick()
    path = os.pathsep.join((str(Path(python).parent), os.environ["PATH"]))
    return commands.begin(*before, python, SUBMIT, *flags, cwd=cwd, env={"PATH": path})


def submit(
    *flags: str, cwd: str | Path = "/", timeout_s: float = 300, python: str | None = None
) -> tuple[int, str, str]:
    """Run to the end; return exit code, stdout and stderr.

    By default, the processes start without delay, but do not form one process tree.
    """
    process = start(*flags, cwd=cwd, python=python or interpreter())
    return commands.finish(process, timeout_s)


def run_well(*flags: str, **how: Any) -> str:
    """Run to the end, which must be a success; return what is printed."""
    code, out, err = submit(*flags, **how)
    assert code == 0, out + err
    return out


def only_run(logs: Path) -> Path:
    """Return the folder of the only run."""
    (run_dir,) = (path.parent for path in logs.glob("*/config.yaml"))
    return run_dir


def recovery_s(out: str, run_dir: Path, work: str) -> float:
    """Return the seconds that the only recovery took, as printed and recorded."""
    (shown,) = re.findall(f"^attempt 2: {work} after ([0-9.]+) s$", out, re.MULTILINE)
    total_s = json.loads((run_dir / "recovery.json").read_text())["total_s"]
    assert shown == f"{total_s:.1f}"
    return float(total_s)


def unnamed(run_dir: Path) -> list[str]:
    """Return the files of a run folder that `muster/run_files.py` does not name."""
    paths = (path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file())
    return sorted(path for path in paths if run_files.matching(path) is None)


def alive(folder: Path) -> list[int]:
    """Return processes with a test's own `folder` on their command line, which zombies lack.

    Use it to check, never to kill: only descendants of the test's processes may be killed.
    """
    every = ((one.pid, one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"]))
    own = os.getpid()
    return [pid for pid, words in every if pid != own and any(str(folder) in it for it in words)]


def worker(launcher: subprocess.Popen, rank: int) -> psutil.Process | None:
    """Return one worker of a launcher, or None until its process is there."""
    for process in below(psutil.Process(launcher.pid)):
        try:
            if process_tree.rank_text(process) == str(rank):
                return process
        except psutil.Error:
            continue
    return None


def wait_until(  # type: ignore[no-untyped-def]
    condition, timeout_s: float = 300, about: Callable[[], object] = str
) -> None:
    """Wait until `condition()` is true.

    Raises:
        AssertionError: it never is; the message has what the functions that it called returned at
            the end, and what `about()` returns.
    """
    if becomes_true(condition, timeout_s):
        return
    code = getattr(condition, "__code__", None)
    seen: list[str] = []

    def note(frame: FrameType, event: str, value: object) -> None:
        caller = frame.f_back.f_code.co_qualname if frame.f_back is not None else ""
        if event == "return" and code is not None and caller.startswith(code.co_qualname):
            seen.append(f"{frame.f_code.co_qualname} returned {value!r:.2000}")

    sys.setprofile(note)
    try:
        is_true = condition()
    finally:
        sys.setprofile(None)
    if not is_true:
        is_named = code is None or inspect.ismethod(condition)
        what = repr(condition) if is_named else inspect.getsource(condition).strip()
        lines = [f"not true after {timeout_s:.0f} s: {what}", *seen, str(about())]
        raise AssertionError("\n".join(lines))


def becomes_true(condition, timeout_s: float) -> bool:  # type: ignore[no-untyped-def]
    """Whether it becomes true; a slow condition is checked less often, to spare other tests."""
    deadline = time.monotonic() + timeout_s
    while (began := time.monotonic()) < deadline:
        if condition():
            return True
        time.sleep(max(0.02, 3 * (time.monotonic() - began)))
    return False
