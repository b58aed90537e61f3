"""What agents wrote down of the ranks: when a collective timed out, in a hang, before the end."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.errors import NO_RETRY
from muster.run_files import STACKS
from muster.writing import read_json

Cause = tuple[int, str, tuple[str, ...]]  # exit code, the sentence, what else to print


def read(run_dir: Path, name: str) -> dict[str, Any]:
    """What was seen for one of the reasons "timeout", "hang" and "end"; empty where nothing was."""
    return read_json(STACKS.path(run_dir, name=name)) or {}


def of_hang(run_dir: Path) -> Cause | None:
    """The run made no progress, and its user wants that to end it, or to begin anew."""
    seen = read(run_dir, "hang")
    if seen.get("on_hang", "warn") == "warn":
        return None
    code = NO_RETRY if seen["on_hang"] == "stop" else 1
    return code, f"error: {seen['text']}", tuple(seen["sentences"][1:])


def of_timeout(run_dir: Path, waited: Sequence[str]) -> Cause | None:
    """Whom ranks waited for whose collective timed out; `waited` is what they said of it."""
    seen = read(run_dir, "timeout")
    if not waited or not seen:
        return None
    first, *more = seen["sentences"]
    table = f"what each rank did: muster jobs stacks {run_dir.name}"
    return 1, f"error: {first}", (waited[0][:300], *more, table)


def at_the_end(run_dir: Path) -> list[str]:
    """What workers did that had to be ended."""
    return list(read(run_dir, "end").get("sentences", ()))
