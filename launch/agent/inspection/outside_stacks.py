"""Stacks of a worker that are taken from outside it: by faulthandler, or by a debugging tool."""

import linecache
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

THREAD = re.compile(r"^(Current thread|Thread) (0x[0-9a-f]+)(?: \[(?P<name>[^\]]*)\])? \(most")
# What can show the C frames, too, and how it is asked.
TOOLS = {"py-spy": ("dump", "--native", "--pid"), "pystack": ("remote", "--native-all")}
TOOL_S = 15.0
TOOL_CHARS = 12_000
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


def native_stacks(pid: int) -> str:
    """What py-spy, or else pystack, prints of a process, C frames included; or why it fails."""
    for tool, words in TOOLS.items():
        beside = Path(sys.executable).parent / tool
        command = shutil.which(tool) or (str(beside) if beside.exists() else None)
        if command is None:
            continue
        try:
            done = subprocess.run(
                [command, *words, str(pid)],
                capture_output=True,
                text=True,
                timeout=TOOL_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{tool} on {socket.gethostname()}: {error}"
        return (done.stdout or done.stderr)[:TOOL_CHARS]
    where = socket.gethostname()
    return f"neither py-spy nor pystack is installed on {where}: pip install py-spy there"
