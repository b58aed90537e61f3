"""Make the `--json` documents: one about a run, and one for each event in it."""

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from launch.deadlines import RUN_DOCUMENT_EVERY_S
from launch.runs import run_record
from launch.runs.run_state import Record, RunStatus
from launch.runs.watching import run_activity
from launch.runs.watching.step_progress import checkpoint, settings_of, step_progress
from muster import json_output, records, run_files
from muster.errors import name_of

NODE_FIELDS = ("node", "host", "address", "interface", "ranks")


def few_fields(run_dir: Path, state: RunStatus) -> dict[str, Any]:
    """The fields of a run in a list of runs."""
    job = run_record.read_job(run_dir) or {}
    return {
        "run_id": run_dir.name,
        "run_dir": str(run_dir),
        **_leader_fields(job),
        **_state_fields(state),
    }


def _state_fields(state: RunStatus) -> dict[str, Any]:
    fields = {"word": state.word, "over": state.is_over}
    return {**fields, "detail": state.detail, "notes": state.notes}


def _leader_fields(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: job.get(name) for name in ("launcher", "job_id", "cluster")}


def all_fields(run_dir: Path, state: RunStatus) -> dict[str, Any]:
    """All fields of a run: those of `few_fields`, its nodes, its progress, and how it ended."""
    settings = settings_of(run_dir)
    return {
        **few_fields(run_dir, state),
        "notes": list(run_activity.lines(run_dir, state)),
        "attempt": attempt_of(run_dir),
        "nodes": nodes(run_dir),
        "step": step_progress(run_dir),
        "checkpoint": checkpoint(run_dir, settings) if settings else None,
        "end": end_fields(state.end or run_record.read_end(run_dir)),
    }


def attempt_of(run_dir: Path) -> int:
    """The run's last attempt; 0 is the first."""
    return max(run_files.attempt_folders(run_dir), default=-1) + 1


def nodes(run_dir: Path) -> list[dict[str, Any]]:
    """The nodes whose agents have started, with their ranks."""
    paths = run_files.AGENT.find(run_dir)
    agents = [records.read(run_files.AGENT, path, *NODE_FIELDS) for path in paths]
    return [{name: agent[name] for name in NODE_FIELDS} for agent in agents if agent is not None]


def end_fields(record: Record | None) -> dict[str, Any] | None:
    """How a run, or an attempt, ended."""
    if record is None:
        return None
    return {
        "exit_code": record["code"],
        "cause": record.get("cause") or name_of(record["code"]),
        "message": record.get("message"),
        "rank": record.get("rank"),
        "output": record.get("output", ""),
    }


class RunEvents:
    """The events in a run, from its records."""

    def __init__(self, run_dir: Path, *, is_submitted: bool = False) -> None:
        self._run_dir = run_dir
        self._is_submitted = is_submitted
        self._attempt = attempt_of(run_dir)
        self._started: int | None = None  # the last attempt whose start was reported
        self._ranks = 0  # how many ranks had an agent at the last look
        self._step: tuple[int, int] | None = None
        self.end: Record | None = None  # how the run ended, if its folder has no record of that

    def report(self, *, last: bool = False) -> None:
        """Print a document for each new event and, with `last`, for the run's end."""
        for kind, fields in self._new_events(last=last):
            json_output.emit(kind, run_id=self._run_dir.name, **fields)

    def _new_events(self, *, last: bool) -> Iterator[tuple[str, dict[str, Any]]]:
        run_dir = self._run_dir
        job = run_record.read_job(run_dir)
        ended = end_fields(self.end or run_record.read_end(run_dir)) if last else None
        is_begun = job is not None and (job["job_id"] or (last and ended is None))
        if job is not None and is_begun and not self._is_submitted:
            self._is_submitted = True
            yield "submitted", {"run_dir": str(run_dir), **_leader_fields(job)}
        for attempt, folder in run_files.attempt_folders(run_dir).items():
            if attempt >= self._attempt:
                self._attempt = attempt + 1
                yield (
                    "restart",
                    {"attempt": self._attempt, "after": end_fields(run_record.read_end(folder))},
                )
        started_nodes = nodes(run_dir)
        ranks = sum(len(node["ranks"]) for node in started_nodes)
        # All nodes write their records when they have connected. The list is complete if a second
        # look finds no more ranks.
        is_complete = ranks and (last or ranks == self._ranks)
        self._ranks = ranks
        if is_complete and self._started != self._attempt:
            self._started = self._attempt
            yield "started", {"attempt": self._attempt, "nodes": started_nodes}
        progress = step_progress(run_dir)
        if progress is not None and (self._attempt, progress["step"]) != self._step:
            self._step = (self._attempt, progress["step"])
            yield "step", progress
        if ended is not None:
            yield "ended", {"run_dir": str(run_dir), **ended}


@contextmanager
def documented(run_dir: Path) -> Iterator[RunEvents]:
    """A context manager that prints a run's events every second, and at its end."""
    events = RunEvents(run_dir)
    is_over = Event()

    def report_events() -> None:
        try:
            while not is_over.is_set():
                events.report()
                is_over.wait(RUN_DOCUMENT_EVERY_S)
        except BrokenPipeError:  # nobody reads the output any more: that ends the run
            os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=report_events, daemon=True)
    thread.start()
    try:
        yield events
    finally:
        is_over.set()
        thread.join()
        events.report(last=True)
