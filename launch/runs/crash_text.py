"""What a worker printed as it died of a signal: faulthandler's stacks, and C++'s own reason."""

import re
from dataclasses import dataclass

FATAL = "Fatal Python error:"  # what faulthandler prints first
WHAT = re.compile(r"^ +what\(\): +(.*)$", re.MULTILINE)  # of a C++ exception that nobody caught
CODES = {"Aborted": 134, "Segmentation fault": 139, "Bus error": 135}  # by faulthandler's words
KILLED = 137
OURS = ("launch/worker_main.py", "muster/inspection.py")  # no part of the program


@dataclass(frozen=True)
class Crash:
    """How a worker died, by what it printed."""

    code: int  # 128 + the number of the signal
    why: str  # `Aborted: Received data size doesn't match expected size ...`
    dump: tuple[str, ...]  # the stacks, innermost line first


def of(text: str) -> Crash | None:
    """What a worker's stderr says; None if faulthandler has printed nothing there."""
    if FATAL not in text:
        return None
    dump = text[text.index(FATAL) :].rstrip()
    name = dump.removeprefix(FATAL).split("\n")[0].strip()
    what = WHAT.search(text)
    threads = [one for one in dump.split("\n\n") if OURS[1] not in one]
    lines = "\n\n".join(threads).splitlines()
    return Crash(
        code=CODES.get(name, KILLED),
        why=f"{name}{f': {what[1]}' if what else ''}",
        dump=tuple(line for line in lines if OURS[0] not in line),
    )
