"""`muster jobs stacks`: ask a run, and show what it answers."""

import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.agent.inspection import stack_table
from launch.agent.inspection.request_file import Asking
from launch.runs import hang_record, run_state
from muster.errors import MusterError

ANSWER_S = 6.0  # agents have less
REASONS = {
    "timeout": "when a collective timed out",
    "hang": "when it made no progress",
    "end": "before its workers were ended",
}


def stacks(run_dir: Path, *, full: bool) -> None:
    """Print what each rank does, and what the run hangs on; of one that is over, what it did last.

    Raises:
        MusterError: nobody answers.
    """
    width = None if sys.stdout.isatty() else 200
    console = Console(width=width)
    if run_state.of(run_dir).over:
        seen, why = _seen(run_dir)
        at = time.strftime("%H:%M:%S", time.localtime(seen["time_unix_s"]))
        console.print(f"{run_dir.name} is over; this was seen {why}, at {at}:", soft_wrap=True)
        stack_table.show(seen, console, full=full)
        return
    asking = Asking(run_dir, ask="stacks")
    try:
        findings = asking.wait(ANSWER_S)
    finally:
        asking.close()
    if findings is None or "reports" not in findings:
        raise MusterError(_silence(run_dir))
    stack_table.show(findings, console, full=full)


def _seen(run_dir: Path) -> tuple[dict[str, Any], str]:
    """What was written down of a run that is over, the reason that tells most first.

    Raises:
        MusterError: nothing was.
    """
    for name, why in REASONS.items():
        if seen := hang_record.read(run_dir, name):
            return seen, why
    raise MusterError(f"{run_dir.name} is over, and nothing was seen to hang in it")


def _silence(run_dir: Path) -> str:
    return (
        f"{run_dir.name} did not answer for {ANSWER_S:.0f} s: whoever leads it is held up, or sees "
        f"another folder than this one: {run_dir}"
    )
