"""Find the last output of a worker that failed, or of torchrun, and the user's line in a stack."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.nodes.messages import Frame
from launch.starters.torchrun import workers_lines
from muster.printable import printable
from muster.run_files import ERRORS, OUTPUT
from muster.worker.lost_peer import CONSEQUENCE, is_consequence
from muster.writing import tail

FATAL = "Fatal Python error:"  # faulthandler prints it first
CPP_EXCEPTION = re.compile(r"^ +what\(\): +(.*)$", re.MULTILINE)  # of an uncaught C++ exception
CODES = {"Aborted": 134, "Segmentation fault": 139, "Bus error": 135}  # by faulthandler's words
KILLED = 137  # by SIGKILL
# How much is read from the end of a file. A faulthandler dump has at most 100 threads with 100
# lines each; an agent's log is shorter.
DUMP_BYTES = 4_000_000
LOG_BYTES = 1_000_000
LOG_LINES = 25  # usually a whole traceback
# Limits for the end of a failed rank's output, as it is printed and recorded.
END_BYTES = 32_768
END_LINES = 20
END_CHARACTERS = 4_000
LINE_CHARACTERS = 400
BESIDE_ERRORS = 5  # lines of stdout before those of stderr
PYTHON_HOME = re.compile(r"^  PYTHONHOME = '(.*)'$", re.MULTILINE)  # of a Python that cannot start
TORCHS_PREFIX = re.compile(r"^\[rank\d+\]: ")  # in front of each line of a traceback
# Muster's own files in a stack: the files that run the program, and the file that runs beside it.
AROUND = ("muster/worker/worker_main.py", "muster/worker/preload.py")
BESIDE = "muster/worker/inspection.py"
FOLDERS = ("configs", "launch", "muster", "train")  # the folders of Muster's checkout with its code
# Paths outside the user's program: packages, Python itself, and generated code.
PACKAGES = ("/site-packages/", "/dist-packages/")
GENERATED = ("<frozen", "<string>", "<eval_with_key>", "/torchinductor_")
LIBRARIES = (*PACKAGES, "/lib/python3", "/lib64/python3", *GENERATED)


@dataclass(frozen=True)
class Crash:
    """How a worker died, from its output."""

    code: int  # 128 + the number of the signal
    why: str  # `Aborted: Received data size doesn't match expected size ...`
    dump: tuple[str, ...]  # the stacks, innermost line first


def crash_of(errors: Path) -> Crash | None:
    """How a worker died, from its stderr; None if faulthandler has printed nothing there."""
    text = tail(errors, DUMP_BYTES).decode(errors="replace")
    if FATAL not in text:
        return None
    dump = text[text.index(FATAL) :].rstrip()
    name = dump.removeprefix(FATAL).split("\n")[0].strip()
    what = CPP_EXCEPTION.search(text)
    threads = [thread for thread in dump.split("\n\n") if BESIDE not in thread]
    lines = "\n\n".join(threads).splitlines()
    return Crash(
        code=CODES.get(name, KILLED),
        why=f"{name}{f': {what[1]}' if what else ''}",
        dump=tuple(line for line in lines if not any(path in line for path in AROUND)),
    )


def lost_peer_in(errors: Path) -> str:
    """How an aborted worker had lost another one, from its stderr; "" if it had not.

    A thread of NCCL's process group aborts a worker (SIGABRT) if another rank is gone, or did not
    join a collective. No Python code of the worker is involved.
    """
    crash = crash_of(errors)
    return crash.why if crash is not None and is_consequence(crash.why) else ""


def end_of(run_dir: Path, rank: int) -> str:
    """The last lines of a rank's stdout, then of its stderr, as a terminal shows them.

    If stderr has lines, only a few lines of stdout are taken: either may show the reason for a
    failure, and the other may have only progress or warnings. Lines about another lost rank are
    left out.
    """
    output, errors = (
        lines_of(tail(file.path(run_dir, rank=rank), END_BYTES)) for file in (OUTPUT, ERRORS)
    )
    return "\n".join(_last_of([*(output[-BESIDE_ERRORS:] if errors else output), *errors]))


def lines_of(data: bytes) -> list[str]:
    """The lines of an output as a terminal shows them, without escapes, each of a bounded length.

    Only the last version of a line that was drawn several times is kept. Blank lines at the end are
    left out.
    """
    lines = []
    for line in data.decode(errors="backslashreplace").split("\n"):
        if line.startswith(CONSEQUENCE):
            continue
        drawn = line.partition(CONSEQUENCE)[0].rstrip("\r ")
        plain = printable(TORCHS_PREFIX.sub("", drawn[drawn.rfind("\r") + 1 :]))
        if len(plain) > LINE_CHARACTERS:
            half = LINE_CHARACTERS // 2
            plain = f"{plain[:half]} ... {plain[-half:]}"
        lines.append(plain)
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def _last_of(lines: Sequence[str]) -> list[str]:
    """The last lines, as many as the limits allow."""
    last: list[str] = []
    room = END_CHARACTERS
    for line in reversed(lines[-END_LINES:]):
        room -= len(line) + 1
        if room < 0 and last:
            break
        last.insert(0, line)
    return last


def last_log_lines(logs: Sequence[Path]) -> tuple[Path, str] | None:
    """The end of the first log with any text; torchrun's own lines only if there are no others."""
    texts = {log: tail(log, LOG_BYTES).decode(errors="replace") for log in logs}
    for words in (workers_lines, str.splitlines):
        for log, text in texts.items():
            if lines := words(text.strip()):
                home = PYTHON_HOME.search(text)
                hint = [f"PYTHONHOME={home[1]} does not fit this Python; unset it"] if home else []
                return log, "\n".join([*lines[-LOG_LINES:], *hint])
    return None


def innermost_user_frame(frames: Sequence[Frame], muster: str) -> Frame | None:
    """The innermost line of the user's program, outside Muster, torch and the standard library.

    A program without such a line belongs to a package, or to Muster: then it is a line from there.
    `muster` is the folder of Muster's checkout on that node.
    """
    frames = [frame for frame in frames if not frame.file.endswith((*AROUND, BESIDE))]
    return min(reversed(frames), key=lambda frame: distance(frame, muster), default=None)


def distance(frame: Frame, muster: str) -> int:
    """How far a line is from the user's program: 0 if it is a part of it."""
    file = frame.file
    if is_of_muster(file, muster):
        return 2
    if not any(part in file for part in LIBRARIES):
        return 0
    is_torch = any(f"{packages}torch/" in file for packages in PACKAGES)
    return 1 if any(packages in file for packages in PACKAGES) and not is_torch else 3


def is_of_muster(file: str, muster: str) -> bool:
    """Whether a file is Muster's own; `muster` is the folder of its checkout on that node."""
    folders = tuple(f"{muster}/{name}/" for name in FOLDERS if muster)
    is_installed = any(f"{packages}muster/" in file for packages in PACKAGES)
    return is_installed or file.startswith(folders) or file.endswith((*AROUND, BESIDE))
