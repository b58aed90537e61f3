"""Run `launch/submit.py` as a user does, and look at which processes it leaves."""

import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SUBMIT = str(REPOSITORY / "launch" / "submit.py")


def start(*flags: str, cwd: str | Path = "/", python: str = sys.executable) -> subprocess.Popen:
    return subprocess.Popen(
        [python, SUBMIT, *flags],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def submit(*flags: str, cwd: str | Path = "/", timeout_s: float = 120) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    process = start(*flags, cwd=cwd)
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
    return process.returncode, out, err


def alive(run_id: str) -> list[int]:
    """Processes with `run_id` on their command line; a zombie has none any more."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(run_id.encode() in word for word in words):
                found.append(int(folder.name))
    return found


def worker(run_id: str, rank: int, exits_of: Path) -> int:
    """The pid of one worker, by its agent's node rank."""
    for pid in alive(run_id):
        env = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
        if f"RANK={rank}".encode() in env:
            return pid
    raise LookupError(f"no rank {rank} of {run_id}")


def wait_until(condition, timeout_s: float = 60) -> bool:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.1)
    return bool(condition())
