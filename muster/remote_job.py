"""A run that was started from Python: its state, output and results, from any process.

Everything is in the run's folder, so a notebook may be closed and another one can continue.

A run of `muster.map` waits for its turn before it has a folder. The process that starts the runs of
a map holds a lock on `.sweep.lock` as long as it lives, and records each run's state in
`sweep.json`. So the status of a run without a `job.json` is the first that applies:

    recorded as "failed" or "stopped"         that, with the recorded message
    cancelled, not recorded as "running"      stopped
    not locked                                lost: no process will start it
    otherwise                                 waiting

To cancel a run that has not begun, a file with its name is created in `cancelled/`; the process
that starts the runs looks there before each start. For a moment the run may still be started. So
`cancel` waits until the run has begun and been ended, or has been skipped.
"""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import reprlib
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from muster import arguments, records, run_files
from muster.checkout import CHECKOUT, own_python
from muster.errors import MusterError, RunFailed, UsageError, refuse
from muster.status import Status
from muster.worker.function_call import read_private
from muster.writing import read_json

MUSTER = "muster/command.py"
LOOK_S = 0.1
ASK_S = 10.0  # between checks whether the run still has a leader, or its job is still queued
BEGIN_S = 30.0  # from the creation of a run's folder to its leader's record
SEEN_S = 1.0  # at most, until the process that starts the runs sees a cancel file
ARRIVE_S = 10.0  # for other machines' files, which a shared disk may show late
LOST = 1  # the exit code of a run that has ended without a record


class Job:
    """A run, identified by its folder.

    In a `with` block, an error cancels the run.
    """

    def __init__(self, run_dir: str | os.PathLike[str]) -> None:
        if not isinstance(run_dir, (str, os.PathLike)) or not os.fspath(run_dir):
            raise UsageError(
                f"muster.Job: run_dir is {reprlib.repr(run_dir)}\ntip: pass the folder of a run"
            )
        self.run_dir = Path(run_dir)

    @property
    def run_id(self) -> str:
        """The name of the run, also for `muster jobs`."""
        return self.run_dir.name

    def __repr__(self) -> str:
        return f"Job({self.run_id!r})"

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None:
            self.cancel()

    def status(self) -> Status:
        """What the run is doing now."""
        return self._look()[0]

    def _look(self) -> tuple[Status, dict[str, Any] | None]:
        """What the run is doing now, and how it has ended, if that is known."""
        if not self._has_begun() and self._sweep_lock.exists():
            return self._before_it_began(), None
        raw = json.loads(self._ask("status", "--json").splitlines()[-1])
        return Status(raw["word"], raw["over"], raw["detail"], tuple(raw["notes"])), raw["end"]

    def _before_it_began(self) -> Status:
        """The status of a run of `muster.map` that has not begun; such runs wait for their turn."""
        folder = self.run_dir.parent.parent
        entry = self._entry()
        if entry.get("state") in ("failed", "stopped"):
            return Status(entry["state"], True, entry["message"])
        is_cancelled = (folder / run_files.CANCELLED / self.run_id).exists()
        if is_cancelled and entry.get("state") != "running" and not self.run_dir.exists():
            return Status("stopped", True, "cancelled before it started")
        if not _is_locked(self._sweep_lock) and not self._has_begun():
            return Status("lost", True, "the process that should have started it has ended")
        return Status("waiting", False)

    @property
    def _sweep_lock(self) -> Path:
        """The lock of `muster.map`, while its runs are started; a single run has none."""
        return self.run_dir.parent.parent / run_files.SWEEP_LOCK

    def _entry(self) -> dict[str, str]:
        """The entry for this run in the record of `muster.map`."""
        record = read_json(self.run_dir.parent.parent / run_files.SWEEP) or {"cells": []}
        return next((cell for cell in record["cells"] if cell["id"] == self.run_id), {})

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the run is over; return its exit code.

        Raises:
            TimeoutError: it is still running after `timeout_s` seconds.
        """
        if timeout_s is not None:
            refuse(arguments.number("timeout_s", timeout_s, least=0), where="wait: ")
        began = last_look = time.monotonic()
        while True:
            end = self._end()
            now = time.monotonic()
            if end is not None and end["code"] == 0:
                return 0
            if now - last_look > (1.0 if end is not None else ASK_S):  # a job may be queued again
                last_look = now
                status, ended = self._look()
                if status.is_over:
                    return LOST if ended is None else int(ended["exit_code"])
            if timeout_s is not None and now - began > timeout_s:
                raise TimeoutError(
                    f"{self.run_id} is not done after {timeout_s:g} s: {self.status()}"
                )
            time.sleep(LOOK_S)

    def results(self, timeout_s: float | None = None) -> list[Any]:
        """Wait until the run is over; return what each rank's call has returned, by rank.

        Raises:
            RunFailed: a rank failed, or the run was ended; its cause is the rank's own exception.
            TimeoutError: it is still running after `timeout_s` seconds.
            UsageError: the run does not call a function.
        """
        self._wait_for_results(timeout_s)
        return [self._result(rank) for rank in range(self._world_size())]

    def rank(self, number: int, timeout_s: float | None = None) -> Any:
        """Return what this rank's call has returned; like `results`, but for this rank only.

        Raises:
            UsageError: the run has no such rank.
        """
        refuse(arguments.whole_number("number", number, 0), where="rank: ")
        self._wait_for_results(timeout_s)
        if number >= (ranks := self._world_size()):
            raise UsageError(
                f"rank: number is {number}, but the ranks of {self.run_id} are 0 to {ranks - 1}"
            )
        return self._result(number)

    def logs(self, *, rank: int | None = None, follow: bool = False) -> Iterator[str]:
        """Iterate over the lines that the workers print; with `follow`, until the run is over.

        Raises:
            UsageError: it has no such rank.
            MusterError: its logs could not be read; stderr says why.
        """
        if rank is not None:
            refuse(arguments.whole_number("rank", rank, 0), where="logs: ")
        chosen = [] if rank is None else ["--rank", str(rank)]
        return self._lines(["--follow", *chosen] if follow else chosen)

    def _lines(self, words: list[str]) -> Iterator[str]:
        process = subprocess.Popen(
            [*_command(MUSTER, "jobs", *self._words("logs")), *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    yield line.rstrip("\n")
                if code := process.wait():
                    kind = UsageError if code == UsageError.exit_code else MusterError
                    raise kind(
                        f"logs: {self.run_id}: exit code {code}\ntip: see its message on stderr"
                    )
            finally:
                process.terminate()

    def stacks(self, *, full: bool = False) -> str:
        """Where each rank is, and what it is waiting for, as `muster jobs stacks` shows it."""
        return self._ask("stacks", *(["--full"] if full else []))

    def cancel(self) -> None:
        """End the run and everything it started; return when that is done."""
        if not self._has_begun() and self._sweep_lock.exists():
            cancel_file = self.run_dir.parent.parent / run_files.CANCELLED / self.run_id
            cancel_file.parent.mkdir(exist_ok=True)
            cancel_file.touch()
            began = time.monotonic()
            while not self._has_begun() and time.monotonic() < began + BEGIN_S:
                is_starting = self._entry().get("state") == "running"
                if not is_starting and time.monotonic() > began + SEEN_S:
                    return  # the process that would start it has seen the file, or will see it
                time.sleep(LOOK_S)
        self._ask("cancel")

    def _wait_for_results(self, timeout_s: float | None) -> None:
        code = self.wait(timeout_s)
        if code:
            failure, cause = self._failure(code)
            raise failure from cause
        if not run_files.FUNCTION.path(self.run_dir).is_dir():
            raise UsageError(
                f"{self.run_id} does not run a function and has no results; its files are in its "
                "run_dir"
            )

    def _has_begun(self) -> bool:
        return run_files.JOB.path(self.run_dir).exists()

    def _result(self, rank: int) -> Any:
        path = run_files.RESULT.path(self.run_dir, rank=rank)
        deadline = time.monotonic() + ARRIVE_S
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        return pickle.loads(read_private(path)).get("value")

    def _end(self) -> dict[str, Any] | None:
        path = run_files.EXIT.path(self.run_dir)
        return records.read(run_files.EXIT, path, "code", "message")

    def _world_size(self) -> int:
        paths = run_files.AGENT.find(self.run_dir)
        agents = [records.read(run_files.AGENT, path) or {} for path in paths]
        return sum(len(agent.get("ranks", ())) for agent in agents)

    def _failure(self, code: int) -> tuple[RunFailed, BaseException | None]:
        """The failure of the run, and the exception of the rank that failed first."""
        end = self._end() or self._look()[1] or {}
        rank: int | None = end.get("rank")
        record = None
        if rank is not None:
            path = run_files.RANK_END.path(self.run_dir, rank=rank)
            record = records.read(run_files.RANK_END, path, "host", "message", "traceback")
        if rank is None or record is None:
            text = end.get("message") or str(self.status())
            return RunFailed(f"{self.run_id}: {text}", code, rank), None
        node = (end.get("end") or {}).get("node")  # the host's name in this run
        host = str(node or record["host"])
        lines = str(record["traceback"])
        text = str(end.get("message")).removeprefix("error: ")
        if record["message"]:  # otherwise the rank ended well, but before the others
            text = end.get("sentence") or text
        if lines and lines.rstrip() not in text:  # as a record without a sentence has it
            text += f"\n\nIn the worker:\n{lines.rstrip()}"
        output = end.get("output")
        text += f"\n\nIts output ends with:\n{output}" if output else ""
        path = run_files.RESULT.path(self.run_dir, rank=rank)
        try:
            cause = pickle.loads(read_private(path)).get("error")
        except Exception:  # noqa: BLE001 (a class missing here, or the user's own __init__)
            cause = None
        return RunFailed(text, code, rank, host, lines), cause

    def _words(self, verb: str) -> list[str]:
        return ["--logs-dir", str(self.run_dir.parent), verb, self.run_id]

    def _ask(self, verb: str, *words: str) -> str:
        return run_command(MUSTER, "jobs", *self._words(verb), *words)


def run_command(script: str, *words: str, env: Mapping[str, str] | None = None) -> str:
    """Run one of the checkout's scripts to its end; return what it prints.

    It is a separate process, so this process's signals and other children are not affected.

    Raises:
        UsageError: the script refuses its arguments.
        MusterError: the script failed.
    """
    done = subprocess.run(
        _command(script, *words), env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False,
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.splitlines()
        errors = [
            line.removeprefix("error: ") for line in lines if line.startswith(("error: ", "tip: "))
        ]
        kind = UsageError if done.returncode == UsageError.exit_code else MusterError
        raise kind("\n".join(errors) or done.stderr.strip() or done.stdout.strip())
    return done.stdout


def _command(script: str, *words: str) -> list[str]:
    """The command with the Python that has the packages of launch/."""
    return [own_python(), str(CHECKOUT / script), *words]


def _is_locked(path: Path) -> bool:
    """Whether the process that starts the runs of this sweep is alive: it holds the lock."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:  # locked, or this file system has no locks
            return True
    return False
