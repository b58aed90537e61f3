"""`muster jobs stacks`: ask a run what its ranks are doing, and print one line for each rank."""

import json
import secrets
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from launch.agent.inspection.diagnosis import condition
from launch.agent.inspection.run_inspection import Findings, sentences_of, views_of
from launch.deadlines import INSPECTION_TICK_S, LEADER_ANSWERS_INSPECTION_S
from launch.nodes.messages import Report
from launch.runs import end_facts, run_state
from muster import json_output
from muster.errors import MusterError
from muster.printable import on_one_line
from muster.run_files import ANSWER, REQUESTS
from muster.writing import parsed

REASONS = {
    "timeout": "when a collective timed out",
    "hang": "when it made no progress",
    "end": "before its workers were ended",
}


def ask(run_dir: Path, timeout_s: float, **request: object) -> dict[str, object] | None:
    """Ask a run for an answer; None if none comes in time; see `launch/runs/log_tail.py`.

    Raises:
        MusterError: the run folder cannot be written.
    """
    name = secrets.token_hex(6)
    deadline = time.monotonic() + timeout_s
    path = ANSWER.path(run_dir, name=name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        with REQUESTS.path(run_dir).open("ab") as file:
            file.write(json.dumps({"id": name, **request}).encode() + b"\n")
        while time.monotonic() < deadline:
            line, end, _ = path.read_bytes().partition(b"\n")
            if end:
                return dict(parsed(line))
            time.sleep(INSPECTION_TICK_S)
        return None
    except OSError as error:
        raise MusterError(f"{path.parent}: {error.strerror}") from None
    except (TypeError, ValueError):
        raise MusterError(f"{path} cannot be read as an answer") from None
    finally:
        with suppress(OSError):
            path.unlink()


def stacks(run_dir: Path, *, full: bool) -> None:
    """Print what each rank is doing and what blocks the run; if the run is over, from its record.

    Raises:
        MusterError: nobody answers, or there is no record.
    """
    is_over = run_state.state_of(run_dir).is_over
    if is_over:
        record, why = _recorded(run_dir)
    else:
        record = ask(run_dir, LEADER_ANSWERS_INSPECTION_S, ask="stacks") or {}
        why = "now"
    if "reports" not in record:
        raise MusterError(
            f"{run_dir.name} has not answered for {LEADER_ANSWERS_INSPECTION_S:.0f} s: the process "
            f"that leads it is blocked, or does not share this folder: {run_dir}"
        )
    try:
        findings = _findings_in(record)
        views = views_of(findings).values()
        lines = [f"rank {view.rank} on {view.node}: {condition(view)}" for view in views]
    except (KeyError, ValueError, msgspec.ValidationError):
        raise MusterError(f"{run_dir.name}: the report made {why} cannot be read") from None
    if is_over:
        at = time.strftime("%H:%M:%S", time.localtime(findings.get("time_unix_s", 0.0)))
        print(on_one_line(f"{run_dir.name} is over; this was its state {why}, at {at}:"))
    record["sentences"] = findings["sentences"]
    json_output.emit("stacks", run_id=run_dir.name, seen=why, **record)
    for line in (*findings["sentences"], *lines):
        print(on_one_line(line))
    for report in findings["reports"] if full else ():
        _show_threads(report)


def _findings_in(record: dict[str, object]) -> Findings:
    """Read a recorded inspection, with its meaning in sentences.

    Another version of Muster may have recorded reports in another form. Such a record is read
    without the reports, but only if it contains the sentences that were made from them.

    Raises:
        KeyError: it has no such sentences.
        msgspec.ValidationError: it is not an inspection.
    """
    try:
        findings = msgspec.convert(record, Findings)
    except msgspec.ValidationError:
        without_reports = {**record, "reports": [], "sentences": record["sentences"]}
        return msgspec.convert(without_reports, Findings)
    if "sentences" not in findings:
        findings["sentences"] = sentences_of(findings)
    return findings


def _recorded(run_dir: Path) -> tuple[dict[str, object], str]:
    """The most useful inspection that a finished run has recorded, and why it was made.

    Raises:
        MusterError: no inspection was recorded.
    """
    for name, why in REASONS.items():
        if seen := end_facts.stacks_seen(run_dir, name):
            return seen, why
    raise MusterError(f"{run_dir.name} is over, and no hang was recorded")


def _show_threads(report: Report) -> None:
    """Print every thread of a rank, with the innermost line last, and its child processes."""
    print(f"\nrank {report.rank} (process {report.pid})")
    for thread in report.threads:
        print(on_one_line(f"  thread {thread.name}"))
        for frame in thread.frames:
            print(on_one_line(f"    {frame.file}:{frame.line} in {frame.function}"))
            if frame.text:
                print(on_one_line(f"      {frame.text}"))
    for child in report.process.children if report.process else ():
        print(on_one_line(f"  child process {child.pid}, which {child.words}"))
