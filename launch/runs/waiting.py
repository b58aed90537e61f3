"""Wait for a run that another process or a scheduler leads, and that continues without this one."""

import re
import sys
import time
from pathlib import Path
from typing import Any

from launch.deadlines import RUN_DOCUMENT_EVERY_S
from launch.runs import run_record, run_state
from launch.runs.run_state import RunStatus, Watchers
from launch.runs.watching import run_document
from launch.runs.watching.run_document import RunEvents
from muster import json_output
from muster.errors import TIME_OVER, UsageError
from muster.printable import on_one_line

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds(text: str) -> float:
    """The seconds in the value of `--for`.

    Raises:
        UsageError: the value is not a time.
    """
    time_and_unit = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text, re.ASCII)
    if time_and_unit is None:
        raise UsageError(f"--for {text!r}: expected a time such as 90 (seconds), 30m, 2h or 1.5d")
    return float(time_and_unit[1]) * UNITS[time_and_unit[2]]


def wait(run_dir: Path, patience_s: float | None) -> int:
    """Wait until the run has ended, or the time is up; return the exit code.

    Raises:
        KeyboardInterrupt: after printing that the run continues.
    """
    deadline = None if patience_s is None else time.monotonic() + patience_s
    events = RunEvents(run_dir, is_submitted=True)
    watchers = Watchers()
    before = None
    try:
        while True:
            state = run_state.state_of(run_dir, watchers)
            end = run_record.read_end(run_dir)
            if _has_ended(run_dir, state, end, before):
                break
            before = (state.is_over, end)
            events.report()
            left_s = RUN_DOCUMENT_EVERY_S if deadline is None else deadline - time.monotonic()
            if left_s <= 0:
                json_output.emit("time_over", **run_document.all_fields(run_dir, state))
                line = f"{run_dir.name} has not ended yet: {state.word} ({state.detail})"
                print(on_one_line(line), file=sys.stderr)
                return TIME_OVER
            time.sleep(min(RUN_DOCUMENT_EVERY_S, left_s))
    except KeyboardInterrupt:
        line = f"{run_dir.name} continues; to end it: muster jobs cancel"
        print(f"\n{on_one_line(line)}", file=sys.stderr)
        raise
    events.end = state.end or run_state.unrecorded_end(state)
    events.report(last=True)
    line = f"{run_dir.name}: {state.word}{f' ({state.detail})' if state.detail else ''}"
    print(on_one_line(line))
    return int(events.end["code"])


def _has_ended(run_dir: Path, state: RunStatus, end: Any, before: Any) -> bool:
    """Whether the run is over. Between two attempts it is not, since its leader continues.

    The leader may be on another machine, so a failed end counts only if the previous look found it
    as well: `before` has the state and the end at that look.
    """
    if not state.is_over or (end is not None and end["code"] == 0):
        return state.is_over
    return before == (True, end) and not run_state.is_led(run_dir)
