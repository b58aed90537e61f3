"""A run that loses a worker or a node comes together again, and goes on from its checkpoint.

All workers start anew, with a fresh port, on the nodes that answer then: torchrun's own restarts
keep a store whose addresses are stale.
"""

import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.runs import continuation, run_record
from launch.runs.archive import archive_attempt
from launch.runs.failure import Failure, explain
from launch.runs.signals import STOP_SIGNALS, Stopped, between_attempts
from launch.runs.terminal import unhurried
from launch.spec import Facts, Job, Launcher, LaunchSpec
from muster import run_files
from muster.errors import NO_RETRY, STOPPED, MusterError, UsageError

# After so many attempts in a row that get no further than those before, there is no use.
MOST_IDLE = 3
ASK_AGAIN_S = 2.0
# Done, refused, stopped in order, given up, or ended by somebody who wanted just that.
FINAL = (0, UsageError.exit_code, STOPPED, NO_RETRY) + tuple(
    128 + number for number in STOP_SIGNALS
)
# Of a job that somebody here ended; 137 is that of one which lost a worker.
BY_SIGNAL = tuple(128 + number for number in (*STOP_SIGNALS, signal.SIGPIPE))


@dataclass(frozen=True)
class Outcome:
    """How one attempt ended."""

    code: int
    by_signal: bool = False  # to the launcher: somebody wants it to be over

    @property
    def is_worth_another(self) -> bool:
        return not self.by_signal and self.code not in FINAL


def lead(
    launcher: Launcher, name: str, spec: LaunchSpec, facts: Facts, *, restarts: int, least: int
) -> int:
    """Have the run be done, in `restarts` + 1 attempts at most; its exit code.

    `least`: nodes below which it waits for others to return, and then gives up.
    """
    with unhurried():
        try:
            return _lead(launcher, name, spec, facts, restarts, least)
        except Stopped as stopped:
            return _stopped(spec, 128 + stopped.number)


def _lead(
    launcher: Launcher, name: str, spec: LaunchSpec, facts: Facts, restarts: int, least: int
) -> int:
    best, idle = 0, 0
    job = launcher.launch(spec, facts, launcher.plan(spec, facts))
    for attempt in range(restarts + 1):
        run_record.begin(spec, name, job.job_id, cluster=job.cluster)
        if job.detached:
            run_record.print_next_commands(spec, f"job {job.job_id}")
            return 0
        outcome = conclude(job, facts.world_size, spec)
        if attempt == restarts or not outcome.is_worth_another:
            return outcome.code
        with between_attempts(job.signals):
            step = last_step(spec.run_dir)
            idle = 0 if step > best else idle + 1
            best = max(best, step)
            if idle >= MOST_IDLE:
                return give_up(spec, step)
            archive_attempt(spec.run_dir, attempt)
            spec = replace(continuation.with_flags(spec, spec.run_dir), attempt=attempt + 1)
            try:
                facts = _ask_again(launcher, least, spec.join_s)
            except MusterError as error:
                run_record.end(spec, 1, str(error))
                raise
            print(
                f"restart {attempt + 1} of {restarts}: {len(facts.nodes)} nodes go on from the "
                "last checkpoint",
                flush=True,
            )
            job = launcher.launch(spec, facts, launcher.plan(spec, facts))
    raise AssertionError("the last attempt returns")


def conclude(job: Job, world_size: int | None, spec: LaunchSpec) -> Outcome:
    """Wait for the end of an attempt; where it failed, the cause is the last thing one sees."""
    code = job.wait()
    if code in BY_SIGNAL:
        return Outcome(_stopped(spec, code), by_signal=True)
    failure = in_own_words(
        explain(spec.run_dir, world_size, code, job.trouble), run_record.read_end(spec.run_dir)
    )
    if failure is None:
        run_record.end(spec, 0, "")
        return Outcome(0)
    run_record.end(spec, failure.code, failure.text)
    if failure.text.encode() not in job.shown:  # rank 0's own error has just been seen
        lines = (f"run folder: {spec.run_dir}", *failure.context, failure.text)
        print("\n".join(lines), file=sys.stderr)
    return Outcome(failure.code)


def in_own_words(found: Failure | None, ended: Mapping[str, Any] | None) -> Failure | None:
    """What a scheduler's job has said of its end, where it ended; else what is found from here."""
    if ended is None or (found is not None and found.text == ended["message"]):
        return found
    return Failure(ended["code"], ended["message"]) if ended["code"] else None


def _stopped(spec: LaunchSpec, code: int) -> int:
    name = signal.Signals(code - 128).name
    run_record.end(spec, code, f"stopped by {name}")
    print(f"error: stopped by {name}", file=sys.stderr)
    return code


def give_up(spec: LaunchSpec, step: int) -> int:
    """Say that more attempts are of no use; the exit code for that."""
    text = f"{MOST_IDLE} attempts in a row got no further than step {step}: it is not started again"
    run_record.end(spec, NO_RETRY, text)
    print(f"error: {text}", file=sys.stderr)
    return NO_RETRY


def last_step(run_dir: Path) -> int:
    """The last step that any rank of this attempt has recorded; 0 without any."""
    steps = [0]
    for path in run_files.METRICS.find(run_dir):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            for line in file.read().splitlines():
                try:
                    steps.append(int(json.loads(line)["step"]))
                except (ValueError, KeyError, TypeError):  # the first may begin in its middle
                    continue
    return max(steps)


def _ask_again(launcher: Launcher, least: int, patience_s: float) -> Facts:
    """The nodes that answer now: some may be busy dying, or coming back.

    Raises:
        MusterError: too few of them do, for `patience_s` seconds.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            facts = launcher.probe()
            if len(facts.nodes) >= least:
                return facts
            error = MusterError(f"{len(facts.nodes)} nodes answer, of at least {least}")
        except MusterError as failed:
            error = failed
        if time.monotonic() > deadline:
            raise error
        time.sleep(ASK_AGAIN_S)
