"""What `--json` prints: one document per line on stdout; all other output goes to stderr.

Each document is `{"muster": 1, "kind": ...}` and the fields of its kind, listed in
docs/automation.md. The number is raised when a field is removed or changes its meaning. New fields
and kinds may be added at any time.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from muster.printable import json_text

FLAG = "--json"
VERSION = 1
_descriptor: int | None = None  # where documents go after `begin`


def is_asked(argv: Sequence[str]) -> bool:
    """Whether a command line asks for documents; arguments after `--` are another program's."""
    return FLAG in argv[: list(argv).index("--") if "--" in argv else None]


def begin() -> None:
    """Make this process and its children print to stderr; only documents go to stdout."""
    global _descriptor
    if _descriptor is None:
        sys.stdout.flush()
        _descriptor = os.dup(1)
        os.dup2(2, 1)


def has_begun() -> bool:
    """Whether documents are printed."""
    return _descriptor is not None


def end() -> None:
    """Stop printing documents: the reader has all of them."""
    global _descriptor
    if _descriptor is not None:
        os.close(_descriptor)
        _descriptor = None


def emit(kind: str, **fields: Any) -> None:
    """Print a document if documents were asked for. NaN and infinity become null.

    Raises:
        BrokenPipeError: the reader has gone.
    """
    if _descriptor is None:
        return
    text = json_text({"muster": VERSION, "kind": kind, **fields}, default=str)
    data = f"{text}\n".encode()
    while data:
        data = data[os.write(_descriptor, data) :]


def descriptors() -> tuple[int, ...]:
    """The descriptor that documents go to, if any."""
    return () if _descriptor is None else (_descriptor,)
