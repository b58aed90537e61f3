"""Find the last output of a worker that died of a signal, or before any worker had begun."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from muster.writing import tail

FATAL = "Fatal Python error:"  # faulthandler prints it first
WHAT = re.compile(r"^ +what\(\): +(.*)$", re.MULTILINE)  # of an uncaught C++ exception
CODES = {"Aborted": 134, "Segmentation fault": 139, "Bus error": 135}  # by faulthandler's words
KILLED = 137
# The log line of torchrun, and of preload.py, for the first worker that has failed.
EXIT_CODE = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")
# What is read, at the end of a file: faulthandler's dump has at most 100 threads of 100 lines each;
# an agent's log has less.
DUMP_BYTES, LOG_BYTES = 4_000_000, 1_000_000
LOG_LINES = 25  # usually a whole traceback
# torchrun logs notes, and after a failure a long report that hides the reason.
TORCHRUN_NOTE = re.compile(r"[IW]\d{4} [\d:.]+ \d+ .*\btorch/distributed/")
TORCHRUN_REPORT = re.compile(r"E\d{4} [\d:.]+ \d+ .*\btorch/distributed/elastic/")
# not part of the program: what runs it, and what runs beside it
AROUND = ("muster/worker/worker_main.py", "muster/worker/preload.py")
BESIDE = "muster/worker/inspection.py"


@dataclass(frozen=True)
class Crash:
    """How a worker died, from its output."""

    code: int  # 128 + the number of the signal
    why: str  # `Aborted: Received data size doesn't match expected size ...`
    dump: tuple[str, ...]  # the stacks, innermost line first


def crash_of(errors: Path) -> Crash | None:
    """How a worker died, from its stderr; None if faulthandler has printed nothing in it."""
    text = tail(errors, DUMP_BYTES).decode(errors="replace")
    if FATAL not in text:
        return None
    dump = text[text.index(FATAL) :].rstrip()
    name = dump.removeprefix(FATAL).split("\n")[0].strip()
    what = WHAT.search(text)
    threads = [one for one in dump.split("\n\n") if BESIDE not in one]
    lines = "\n\n".join(threads).splitlines()
    return Crash(
        code=CODES.get(name, KILLED),
        why=f"{name}{f': {what[1]}' if what else ''}",
        dump=tuple(line for line in lines if not any(one in line for one in AROUND)),
    )


def exit_codes_of(log: str) -> dict[int, int]:
    """Exit codes of workers by local rank, -9 after SIGKILL, from the log of their starter."""
    return {int(local_rank): int(code) for code, local_rank in EXIT_CODE.findall(log)}


def of_logs(logs: Sequence[Path]) -> tuple[Path, str] | None:
    """The end of the first log with any text; torchrun's words only if there are no others."""
    texts = {log: tail(log, LOG_BYTES).decode(errors="replace") for log in logs}
    for words in (_before_report, str.splitlines):
        for log, text in texts.items():
            if lines := words(text.strip()):
                return log, "\n".join(lines[-LOG_LINES:])
    return None


def _before_report(log: str) -> list[str]:
    """The workers' lines in their agent's log, without torchrun's own lines."""
    lines = itertools.takewhile(lambda line: not TORCHRUN_REPORT.match(line), log.splitlines())
    return [line for line in lines if not TORCHRUN_NOTE.match(line)]
