"""Stacks of a worker that are taken from outside it, by faulthandler."""

import linecache
import re
from typing import Any

THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most")
FRAME = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')


def threads_of(text: str) -> list[dict[str, Any]]:
    """The threads in a dump, that which took the signal first, as inspection.py has them.

    A signal to a process is taken by its main thread, if that can take any.
    """
    threads: list[dict[str, Any]] = []
    for line in text.splitlines():
        if found := THREAD.match(line):
            is_current = found[1] == "Current thread"
            name = "main" if is_current else found["name"] or found[2]
            threads.append({"name": name, "main": is_current, "frames": []})
        elif threads and (found := FRAME.match(line)):
            number = int(found["line"]) if found["line"].isdigit() else 0
            source = linecache.getline(found["file"], number).strip()[:200]
            threads[-1]["frames"].insert(
                0,  # the dump has the innermost first
                {
                    "file": found["file"],
                    "line": number,
                    "function": found["function"],
                    "text": source,
                },
            )
    if threads and not any(thread["main"] for thread in threads):
        threads[-1]["main"] = True  # the oldest comes last
    return sorted(threads, key=lambda thread: not thread["main"])
