"""Use JSON that others have written only if it has the form that its reader needs.

A form is a type, None, a tuple of alternative forms, a list with the form of each element, a dict,
or a function that tells whether a value fits. A dict has the form of each key that is read; a key
that ends with "?" may be missing, and the value may have other keys.

A record in a run folder may be empty after a power failure, truncated, or written by another
version or another user. A damaged record does not hide the others: its readers continue as if it
did not exist, and `why_unreadable` explains what is wrong with it. A form in `FORMS` has each key
that is read. A record may lack a key that its reader does not name as needed, and it may have other
keys.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster import run_files
from muster.printable import on_one_line
from muster.run_files import RunFile
from muster.writing import parsed, record_data, tail

MAYBE = "?"  # at the end of a key
LAST_UNIX_S = 253_402_300_799  # of the year 9999
MOST_CHARACTERS = 60
TAIL_BYTES = 65_536  # at the end of a file of records: enough for the last steps of a rank


def fits(value: Any, form: Any) -> bool:
    """Whether a value has this form. A float must be finite, and True is not a number."""
    if isinstance(form, tuple):
        return any(fits(value, kind) for kind in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(element, form[0]) for element in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and _has_keys(value, form)
    if form is None or isinstance(form, type):
        is_kind = value is None if form is None else type(value) is form
        return is_kind and not (form is float and not math.isfinite(value))
    return bool(form(value))


def dict_of(keys: Any, values: Any) -> Callable[[Any], bool]:
    """The form of a dict with any keys of the form `keys` and values of the form `values`."""
    return lambda value: (
        isinstance(value, dict)
        and all(fits(key, keys) and fits(each, values) for key, each in value.items())
    )


def _has_keys(value: dict[str, Any], form: dict[str, Any]) -> bool:
    for key, kind in form.items():
        name = key.removesuffix(MAYBE)
        if not (fits(value[name], kind) if name in value else key.endswith(MAYBE)):
            return False
    return True


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number that fits into 64 bits; True is not."""
    return type(value) is int and abs(value) < 1 << 63


def is_count(value: Any) -> bool:
    return is_whole(value) and 0 <= value < 1 << 31


def is_exit_code(value: Any) -> bool:
    return is_whole(value) and 0 <= value < 256


def is_rank(value: Any) -> bool:
    """Whether `value` can be a rank, or the number of a node, which is no larger."""
    return is_whole(value) and 0 <= value < 1 << 20


def is_number(value: Any) -> bool:
    return is_whole(value) or (type(value) is float and math.isfinite(value))


def is_number_or_nan(value: Any) -> bool:
    """Whether `value` is a number, perhaps not a finite one, as a loss may be."""
    return is_number(value) or type(value) is float


def is_time(value: Any) -> bool:
    """Whether `value` is a time in seconds since 1970, at most that of the year 9999."""
    return is_number(value) and 0 <= value <= LAST_UNIX_S


def _are_sentences(value: Any) -> bool:
    return fits(value, [str]) and bool(value)


def _may_have_given_up(value: Any) -> bool:
    return value in (None, {}) or fits(value, {"message": str})


def _is_number_of_rank(key: str) -> bool:
    return key.isascii() and key.isdigit()


NODE = {
    "index": is_rank,
    "node": str,
    "host": str,
    "address": str,
    "interface": (str, None),
    "ranks": [is_rank],
    "time_unix_s": is_time,
}
# How an agent ended the workers that were still alive, by rank.
TERMINATED = dict_of(_is_number_of_rank, {"state": (str, None), "pid": is_whole})
FORMS: dict[RunFile, Mapping[str, Any]] = {
    run_files.LAUNCH: {"command": str, "stop_grace_s": is_number, "nodes": [dict]},
    run_files.JOB: {
        "launcher": str,
        "job_id": str,
        "cluster": (str, None),
        "host": str,
        "pid": is_count,
        "started_unix_s": is_number,
        "start_ticks": is_whole,
        "boot_id": str,
    },
    run_files.EXIT: {
        "code": is_whole,
        "message": str,
        "cause": str,
        "rank": (is_rank, None),
        "time_unix_s": is_time,
    },
    run_files.SLURM: {"step": (str, None), "output": str},
    run_files.AGENT: NODE,
    run_files.AGENT_END: {
        **NODE,
        "code": is_exit_code,
        "cause": str,
        "message": str,
        "noticed_unix_s": is_time,
        "clock_offset_s": is_number,
        "oom_kills": is_count,
        "full": str,
        "terminated": TERMINATED,
        "ended": TERMINATED,  # written by older versions
    },
    run_files.AWAITED_NODES: {"since_unix_s": is_time, "text": str},
    run_files.STACKS: {
        "time_unix_s": is_time,
        "sentences": _are_sentences,
        "text": str,
        "on_hang": str,
        "reports": [{"rank": is_rank, "gave_up?": _may_have_given_up}],
    },
    run_files.RANK_END: {
        "rank": is_rank,
        "host": str,
        "time_unix_s": is_time,
        "code": is_exit_code,
        "cause": str,
        "message": str,
        "traceback": str,
    },
    run_files.START: {
        "step": is_count,
        "total_steps": (is_count, None),
        "time_unix_s": is_time,
    },
    run_files.STOPPED: {"why": str},
    run_files.SUMMARY: {},
}


def read(file: RunFile, path: Path, *needed: str) -> dict[str, Any] | None:
    """Read a record of the kind `file` from `path`; None if it is absent or unreadable."""
    return _read(file, path, needed)[0]


def why_unreadable(file: RunFile, path: Path, *needed: str) -> str:
    """One line that names the unreadable record and the reason; "" if it is readable or absent."""
    return _read(file, path, needed)[1]


def all_unreadable(run_dir: Path) -> list[str]:
    """The line of `why_unreadable` for each unreadable record in a run folder."""
    pairs = ((file, path) for file in FORMS for path in file.find(run_dir))
    return [line for file, path in pairs if (line := why_unreadable(file, path))]


def record_of(file: RunFile, data: bytes, *needed: str) -> dict[str, Any] | None:
    """The record in `data`, the content of a `file`; None as for `read`."""
    try:
        record: Any = parsed(data)
    except ValueError:
        return None
    return None if _problem(record, FORMS[file], needed) else dict(record)


def _read(file: RunFile, path: Path, needed: tuple[str, ...]) -> tuple[dict[str, Any] | None, str]:
    try:
        record = parsed(record_data(path))
        why = _problem(record, FORMS[file], needed)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        why = error.strerror or str(error)
    except ValueError as error:
        why = f"it is incomplete, or not JSON ({error})"
    return (None, on_one_line(f"{path} is unreadable: {why}")) if why else (record, "")


def _problem(record: Any, form: Mapping[str, Any], needed: tuple[str, ...]) -> str:
    """Why `record` does not have this form; "" if it does."""
    if not isinstance(record, dict):
        return "it is not a JSON object"
    for name in needed:
        if name not in record:
            return f"it has no {name!r}"
    for name, kind in form.items():
        if name in record and not fits(record[name], kind):
            return f"{name!r} is {_abridged(record[name])}"
    return ""


def _abridged(value: Any) -> str:
    """A value as an error shows it; for a list or a dict, only its type."""
    is_nested = isinstance(value, list | dict)
    return f"of type {type(value).__name__}" if is_nested else repr(value)[:MOST_CHARACTERS]


def json_objects(data: bytes) -> list[dict[str, Any]]:
    """Parse the JSON objects in `data`, one per line; skip lines that are cut off or invalid."""
    objects = []
    for line in data.split(b"\n"):
        try:
            value = parsed(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            objects.append(value)
    return objects


def last_objects(path: Path) -> list[dict[str, Any]]:
    """The objects in the last `TAIL_BYTES` of a file; none if there is no such file."""
    return json_objects(tail(path, TAIL_BYTES))
