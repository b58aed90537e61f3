"""What `--json` prints: one document a line on stdout, while all other output goes to stderr.

Each is `{"muster": 1, "kind": ...}` and the fields of its kind, which docs/automation.md lists. The
number is raised when a field goes, or changes its meaning; new fields and kinds may come any time.
"""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

FLAG, VERSION = "--json", 1
_descriptor: int | None = None  # where documents go, once `begin` was called: stdout is one


def is_asked(argv: Sequence[str]) -> bool:
    """Whether a command line of ours asks for documents; what follows `--` is another program's."""
    return FLAG in argv[: list(argv).index("--") if "--" in argv else None]


def begin() -> None:
    """Have this process, and all that it starts, print to stderr; documents alone go to stdout."""
    global _descriptor
    if _descriptor is None:
        sys.stdout.flush()
        _descriptor = os.dup(1)
        os.dup2(2, 1)


def has_begun() -> bool:
    """Whether documents are printed."""
    return _descriptor is not None


def end() -> None:
    """Print no more: whoever reads the documents has them all."""
    global _descriptor
    if _descriptor is not None:
        os.close(_descriptor)
        _descriptor = None


def emit(kind: str, **fields: Any) -> None:
    """Print a document; nothing where none was asked for. A number that is none becomes null.

    Raises:
        BrokenPipeError: whoever read them has gone.
    """
    if _descriptor is None:
        return
    text = json.dumps({"muster": VERSION, "kind": kind, **fields}, default=str)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda _: None))
    data = f"{text}\n".encode()
    while data:
        data = data[os.write(_descriptor, data) :]


def descriptors() -> tuple[int, ...]:
    """The one that documents go to, if any."""
    return () if _descriptor is None else (_descriptor,)
