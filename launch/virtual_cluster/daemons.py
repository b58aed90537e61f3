"""Start, find and end daemons: each is recorded before it runs, and ended by its process number."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from glob import iglob
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from launch.deadlines import (
    DAEMON_ENDS_S,
    DAEMON_KILLED_S,
    DAEMON_REAPED_S,
    DAEMON_STARTS_S,
    DAEMON_TICK_S,
)
from launch.virtual_cluster.virtual_nodes import LOGS, STATE
from muster.errors import MusterError
from muster.writing import read_json, write_json

RECORDS = STATE / "pids"
TAIL_LINES = 8


def render(template: str, **values: Any) -> str:
    """Fill in `templates/TEMPLATE.j2`, which is a file for a daemon or the input of a command.

    Each name in the template needs a value.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the templates are not web pages
    )
    environment.filters["quote"] = lambda path: shlex.quote(str(path))
    return environment.get_template(f"{template}.j2").render(**values)


def start(name: str, argv: Sequence[str], cores: Sequence[int] = ()) -> None:
    """Start `argv` as the daemon `name`, on `cores` if given, with its output in a log."""
    LOGS.mkdir(parents=True, exist_ok=True)

    def record_itself() -> None:
        # No process is ever without a record, even if `up` is killed.
        os.sched_setaffinity(0, cores or os.sched_getaffinity(0))
        number = os.getpid()
        write_json(RECORDS / f"{name}.json", {"pid": number, "started": started_at(number)})

    with (LOGS / f"{name}.log").open("ab") as log:
        subprocess.Popen(
            argv,
            cwd="/",
            # Without the variables of a surrounding Slurm job or Python environment.
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=record_itself,  # noqa: PLW1509  # there are no threads here
        )


def pid(name: str) -> int | None:
    """The process number of the daemon `name`; None if it is not alive."""
    record = read_json(RECORDS / f"{name}.json", "pid", "started")
    if record is None or started_at(record["pid"]) != record["started"]:
        return None
    return int(record["pid"])


def wait(name: str, is_ready: Callable[[], bool]) -> None:
    """Return when the daemon `name` is ready.

    Raises:
        MusterError: the daemon died or took too long; the message has the end of its log.
    """
    deadline = time.monotonic() + DAEMON_STARTS_S
    while not is_ready():
        is_alive = pid(name) is not None
        if not is_alive or time.monotonic() > deadline:
            problem = f"is not ready after {DAEMON_STARTS_S:.0f} s" if is_alive else "ended early"
            lines = (
                (LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace").splitlines()
            )
            tail = "\n".join(lines[-TAIL_LINES:]) or "(nothing)"
            raise MusterError(f"{name} {problem}; its log ends with:\n{tail}")
        time.sleep(DAEMON_TICK_S)


def recorded() -> list[int]:
    """The process numbers of all recorded daemons that are alive."""
    numbers = [pid(path.stem) for path in RECORDS.glob("*.json")]
    return [number for number in numbers if number is not None]


def dead() -> list[str]:
    """The names of the recorded daemons that have died."""
    return sorted(path.stem for path in RECORDS.glob("*.json") if pid(path.stem) is None)


def inside(namespaces: Iterable[Path]) -> list[int]:
    """The numbers of all processes in these network namespaces, no matter who started them."""
    inodes = {(state.st_dev, state.st_ino) for state in map(Path.stat, namespaces)}
    numbers = set()
    # Path.glob() fails if a process ends meanwhile: https://github.com/python/cpython/issues/90208
    for path in iglob("/proc/[0-9]*/task/*/ns/net") if inodes else ():  # noqa: PTH207
        with suppress(OSError):  # a thread that has ended is no longer in a namespace
            state = Path(path).stat()
            if (state.st_dev, state.st_ino) in inodes:
                numbers.add(int(path.split("/")[2]))
    return sorted(numbers)


def end(find: Callable[[], Iterable[int]]) -> None:
    """End all processes that `find` returns: SIGTERM to each, then SIGKILL to the remaining ones.

    Then wait a moment until `ps` no longer lists them, not even as defunct.

    Raises:
        MusterError: a process survives SIGKILL.
    """
    began_s = time.monotonic()
    # The start time of each process that got a signal: a later process may have its number.
    signalled: dict[int, int] = {}
    while numbers := {
        *(number for number in find() if number != os.getpid()),
        # an ending process leaves its namespaces before it disappears
        *(number for number, started in signalled.items() if started_at(number) == started),
    }:
        waited_s = time.monotonic() - began_s
        if waited_s > DAEMON_KILLED_S:
            raise MusterError(
                f"processes {sorted(numbers)} have not ended\ntip: run down again later"
            )
        for number in numbers if waited_s > DAEMON_ENDS_S else numbers - signalled.keys():
            if (started := started_at(number)) is not None:
                signalled[number] = started
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL if waited_s > DAEMON_ENDS_S else signal.SIGTERM)
        time.sleep(DAEMON_TICK_S)
    ended_s = time.monotonic()
    while (
        any(_is_listed(number, started) for number, started in signalled.items())
        and time.monotonic() - ended_s < DAEMON_REAPED_S
    ):
        time.sleep(DAEMON_TICK_S)


def _is_listed(number: int, started: int) -> bool:
    """Whether the process that began at `started` exists, even as a zombie."""
    fields = _stat(number)
    return bool(fields) and int(fields[19]) == started


def started_at(number: int) -> int | None:
    """The start time of a process, in ticks since boot; None if it is gone or only a zombie.

    A process whose first thread has ended is shown as a zombie, although other threads may still
    run. It counts as alive here, since it holds its files and ports until those end.
    """
    fields = _stat(number)
    if not fields or (fields[0] in "ZX" and int(fields[17]) <= 1):
        return None
    return int(fields[19])


def _stat(number: int) -> list[str]:
    """The fields of a process in /proc, from the state on; empty if there is no such process.

    Field 0 is the state, 17 the number of threads, 19 the start time.
    """
    try:
        text = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # The name in brackets may contain anything, even spaces and brackets.
    return text.rpartition(")")[2].split()
