"""Measure the seconds from the fault that ended an attempt to the first work of the next one.

The record of the earlier attempt's end has the time of the fault, by the leader's clock. Rank 0's
`start.json` has the time of the first step, by its node's clock, since the leader may see the file
later. A program that records no steps counts as back at work when it prints its first output.
"""

import time
from contextlib import suppress
from pathlib import Path

from launch.ends import End
from muster import records, run_files
from muster.writing import CannotWrite, write_json


def recorded_fault_unix_s(run_dir: Path, attempt_number: int) -> float | None:
    """When the fault happened that led to this attempt; None if that was not recorded."""
    path = run_files.EXIT.path(_earlier_folder(run_dir, attempt_number))
    record = records.read(run_files.EXIT, path, "time_unix_s")
    end = None if record is None else End.from_json(record.get("end"))
    if record is None or end is None:
        return None
    return end.time_unix_s or float(record["time_unix_s"])  # some ends have no known time


def report(
    run_dir: Path, attempt_number: int, fault_unix_s: float, has_output: bool, clock_offset_s: float
) -> str | None:
    """Record how long the recovery took, and return the line to print; None until it is over.

    `has_output`: whether this attempt has printed anything. `clock_offset_s`: seconds to add to the
    clock of node 0 to get the leader's.
    """
    start = records.read(run_files.START, run_files.START.path(run_dir), "step", "time_unix_s")
    if start is not None:
        work = f"step {start['step']} again"
        time_unix_s = start["time_unix_s"] + clock_offset_s
    elif has_output and not run_files.START.path(_earlier_folder(run_dir, attempt_number)).exists():
        work = "first output"
        time_unix_s = time.time()
    else:
        return None
    total_s = round(max(time_unix_s - fault_unix_s, 0.0), 3)  # the two clocks may differ
    record = {"attempt": attempt_number, "fault_unix_s": fault_unix_s, "total_s": total_s}
    with suppress(CannotWrite):  # not a reason to end the run
        write_json(run_files.RECOVERY.path(run_dir), record)
    return f"attempt {attempt_number}: {work} after {total_s:.1f} s"


def _earlier_folder(run_dir: Path, attempt_number: int) -> Path:
    return run_files.ATTEMPTS.path(run_dir, attempt=attempt_number - 2)
