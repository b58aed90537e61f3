"""`muster jobs stacks` and `muster jobs debug`: ask a run, and show what it answers."""

import select
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from launch.agent.inspection import stack_table
from launch.agent.inspection.request_file import ASK_S, Asking
from launch.runs import hang_record, run_record, run_state
from launch.runs.watching import start_phase
from muster.errors import MusterError, UsageError

ANSWER_S = 6.0  # agents have less
NATIVE_S = 30.0
LEAVE_S = 1.0
REASONS = {
    "timeout": "when a collective timed out",
    "hang": "when it made no progress",
    "end": "before its workers were ended",
}


def stacks(run_dir: Path, *, full: bool, native: bool = False) -> None:
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
    asking = Asking(run_dir, ask="stacks", native=native)
    try:
        findings = asking.wait(NATIVE_S if native else ANSWER_S)
    finally:
        asking.close()
    if findings is None or "reports" not in findings:
        raise MusterError(_silence(run_dir))
    stack_table.show(findings, console, full=full)
    for report in findings["reports"] if native else ():
        print(f"\nrank {report['rank']}:\n{report.get('native', 'its process has ended')}")


def before_steps(run_dir: Path) -> list[str]:
    """Which modules its ranks import, and what they download, as far as they answer at once."""
    asking = Asking(run_dir, ask="stacks")
    try:
        findings = asking.wait(ANSWER_S) or {}
    finally:
        asking.close()
    return list(start_phase.lines(findings.get("reports", ())))


def debug(run_dir: Path, rank: int) -> None:
    """Be the terminal of the debugger of one rank, until it or the user leaves.

    Raises:
        MusterError: nobody answers, or the run is over.
        UsageError: it has no such rank.
    """
    if run_state.of(run_dir).over:
        raise MusterError(f"{run_dir.name} is over; there is no rank to debug any more")
    ranks = run_record.nodes_of_ranks(run_dir)
    if rank not in ranks:
        known = f"its ranks are 0 to {max(ranks)}" if ranks else "its workers have not begun yet"
        raise UsageError(f"{run_dir.name} has no rank {rank}: {known}")
    asking = Asking(run_dir, ask="debug", rank=rank)
    console, began, open_input = sys.stdout, time.monotonic(), True
    console.write(f"waiting for rank {rank} at a breakpoint; Ctrl-D or Ctrl-C leaves it there\n")
    console.flush()
    try:
        while True:
            for message in asking.new():
                console.write(message["debug"])
                console.flush()
                if message["over"]:
                    return
            if not open_input:
                if time.monotonic() - began > LEAVE_S:
                    return
                time.sleep(ASK_S)
            elif select.select([sys.stdin], [], [], ASK_S)[0]:
                line = sys.stdin.readline()
                asking.send(ask="debug", rank=rank, line=line or None)
                open_input, began = bool(line), began if line else time.monotonic()
    except KeyboardInterrupt:
        asking.send(ask="debug", rank=rank, line=None)
    finally:
        asking.close()


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
