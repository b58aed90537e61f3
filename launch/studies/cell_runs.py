"""Run the cells of a sweep as processes of launch/submit.py, and record each result."""

import fcntl
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from launch.agent.processes.process_tree import on_stop
from launch.deadlines import CELL_RUN_TICK_S, CELL_TRIED_AGAIN_S
from launch.launchers.base import launcher_name, launcher_of
from launch.programs.command_line import split_program
from launch.runs import restart, run_record, run_state
from launch.spec import NodeSpec
from launch.studies.cells import Cell, Sweep
from launch.studies.progress_table import tell
from muster import json_output, records, run_files
from muster.checkout import CHECKOUT
from muster.errors import STOPPED, UsageError
from muster.orderly_stop import ALSO_STOP, STOP_SIGNALS
from muster.records import MORE, anything, fits
from muster.worker.process import end_with_parent
from muster.writing import read_json, tail, write_text

SUBMIT = str(CHECKOUT / "launch" / "submit.py")
WRONG_INPUT = UsageError.exit_code
# What is read of a cell that an earlier call has written down.
CELL = {
    "id": str,
    "seconds?": records.is_number,
    "place?": (str, None),
    MORE: anything,
}
# Exit codes of a run that was stopped, cleanly or by a signal.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)

LOG_BYTES = 65_536  # read of a log, for its last line


@dataclass(frozen=True)
class Work:
    """One command that is to be run."""

    log: Path  # of its output
    begin: Callable[[int], Sequence[str]]  # its words, by its place among those at a time, if any
    ended: Callable[[int, float], None]  # heeds its exit code, and its seconds
    cwd: Path = field(default_factory=Path.cwd)  # a sweep in the background leaves it


def run_all(works: Iterable[Work], at_once: int = 1) -> int | None:
    """Run them in their order, at most `at_once` at a time; the signal that ended it all, if any.

    Signals to stop are passed on, as only the commands can end their runs in order; and nothing
    more is started.
    """
    waiting, places, signals, passed_on = list(works), list(range(at_once)), list[int](), 0
    started: dict[int, tuple[Work, subprocess.Popen[bytes], float]] = {}
    before = [(number, signal.getsignal(number)) for number in (*STOP_SIGNALS, *ALSO_STOP)]
    on_stop(lambda number, _: signals.append(number))
    try:
        while started or (waiting and not signals):
            while waiting and places and not signals:
                work = waiting.pop(0)
                if words := work.begin(places[0]):
                    started[places.pop(0)] = (work, _start(work, words), time.monotonic())
            for number in signals[passed_on:]:
                passed_on += 1
                for _, process, _ in started.values():
                    process.send_signal(number)
            for place, (work, process, since_s) in list(started.items()):
                if (code := process.poll()) is not None:
                    del started[place]
                    places = sorted([*places, place])
                    work.ended(code, time.monotonic() - since_s)
            time.sleep(CELL_RUN_TICK_S)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    return signals[0] if signals else None


def _start(work: Work, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    work.log.parent.mkdir(parents=True, exist_ok=True)
    with work.log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            words,
            cwd=work.cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # this process passes a terminal's Ctrl-C on, once
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509  # no threads here
        )


def begin(sweep: Sweep, *, fresh: bool = False) -> None:
    """Begin the record, in which what is done already is done.

    A run is done when its exit.json says 0 and it would be the same again. `fresh`: none is, and
    what earlier runs have left is removed, checkpoints too.
    """
    earlier = {} if fresh else _earlier(sweep.file)
    if earlier:
        last = read_json(sweep.file) or {}
        sweep.texts_before = last.get("texts_before", last.get("texts"))
    else:
        sweep.texts_before = sweep.texts
    for cell in sweep.cells:
        was, record = earlier.get(cell.id, {}), cell.record()
        is_same = all(was.get(name) == record[name] for name in ("settings", "words", "nodes"))
        if is_same and (run_record.read_end(sweep.run_dir(cell)) or {}).get("code") == 0:
            cell.seconds, cell.place = was.get("seconds", 0.0), was.get("place")
            conclude(sweep, cell, 0)  # also if no process was left to record it
        for path in (sweep.run_dir(cell), sweep.checkpoints(cell)) if fresh else ():
            if path.exists():
                shutil.rmtree(path)
    sweep.write()


def _earlier(file: Path) -> dict[str, dict[str, Any]]:
    """What an earlier call has written down of each cell; what cannot be read is left out.

    Raises:
        UsageError: there is such a file, but it is no record: what is done is not known.
    """
    cells = (read_json(file) or {}).get("cells")
    if not isinstance(cells, list) and file.exists():
        raise UsageError(
            f"{file} cannot be read, so nobody knows what is done; remove it, and all runs again"
        )
    return {cell["id"]: cell for cell in cells or () if fits(cell, CELL)}


def going_on(sweep: Sweep, watchers: run_state.Watchers) -> list[Cell]:
    """Those whose runs are not over: of an earlier call, or jobs that wait."""
    states = run_state.states_of([sweep.run_dir(cell) for cell in sweep.cells], watchers)
    return [cell for cell, state in zip(sweep.cells, states, strict=True) if not state.over]


def wait_for_last(sweep: Sweep) -> None:
    """Stay until nothing goes on of a call that was killed: its runs end in order by themselves."""
    watchers, seen = run_state.Watchers(), list[Cell]()
    while going := going_on(sweep, watchers):
        for cell in (one for one in going if one not in seen):
            print(f"{cell.id} goes on; to end it: muster jobs cancel {cell.id}", file=sys.stderr)
        seen = going
        time.sleep(CELL_TRIED_AGAIN_S)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """A context in which no other process leads this sweep; the kernel releases the lock.

    On a file system without locks the user must take care of that.

    Raises:
        UsageError: another process leads it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / run_files.SWEEP_LOCK).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"this sweep is running already: {folder}; see muster jobs list, or give this one "
                "another --name"
            ) from None
        except OSError as error:  # for example Lustre mounted without flock
            note = f"note: {folder} cannot be locked ({error.strerror}); start this sweep once only"
            print(note, file=sys.stderr)
        yield


def command_of(sweep: Sweep, cell: Cell, where: Sequence[str] = ()) -> list[str]:
    """The command of one run; `where`: flags that say on which nodes."""
    runs = sweep.folder / "runs"
    place = [f"--logs-dir={runs}", f"--run-id={cell.id}", "--overwrite", "--quiet"]
    if not sweep.is_study:  # a study's runs are measured from their start
        own = sweep.checkpoints(cell)
        place.append(f"--checkpoint-dir={own}")
        if not cell.parsed.words and restart.has_checkpoint(own, [cell.id]):
            place.append("--resume=auto")
    flags, _ = split_program(cell.words)
    return [sys.executable, SUBMIT, *flags, *where, *place, *cell.words[len(flags) :]]


def host_groups(sweep: Sweep, at_once: int) -> list[Sequence[NodeSpec]]:
    """The hosts of each of the runs that go on at the same time; none where they are all here.

    Raises:
        UsageError: there are not so many hosts, or two runs would need the same port.
    """
    launch, at_once = sweep.first.launch, min(at_once, len(sweep.cells))
    if launcher_name(launch) != "ssh":
        if launch.master_port is not None and at_once > 1:
            raise UsageError(
                f"--master-port {launch.master_port} is one port, but --at-once {at_once} "
                "runs meet on this machine; leave it out"
            )
        return []
    everyone = replace(sweep.first, launch=replace(launch, nodes=None))
    hosts = [node.spec for node in launcher_of(everyone).assume().nodes]
    nodes = max(cell.nodes or len(hosts) for cell in sweep.cells)
    if at_once * nodes > len(hosts):
        named = ", ".join(spec.name for spec in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        can = len(hosts) // nodes
        instead = f"use --at-once {can}" if can else f"use --nodes {len(hosts)}"
        raise UsageError(
            f"--at-once {at_once} of {nodes} {'node' if nodes == 1 else 'nodes'} each needs "
            f"{at_once * nodes} hosts, but there are {len(hosts)} ({named}), enough for {can} at "
            f"a time; {instead}"
        )
    return [hosts[place * nodes : (place + 1) * nodes] for place in range(at_once)]


def hosts_file(sweep: Sweep, place: int) -> Path:
    """What names the hosts of one group."""
    return sweep.folder / "hosts" / f"group_{place}.txt"


def work_of(
    sweep: Sweep,
    cell: Cell,
    flags: Sequence[str] = (),
    groups: Sequence[Sequence[NodeSpec]] = (),
) -> Work:
    """One run, of which the cell then says what came of it.

    `flags` say on which nodes it is, or its place among those at a time, of which each has a group
    of hosts.
    """

    def started(place: int) -> Sequence[str]:
        hosts = hosts_file(sweep, place)
        command = command_of(sweep, cell, [f"--hosts={hosts}"] if groups else flags)
        cell.state, cell.message, cell.results = "running", "", None
        if groups:
            cell.place = ",".join(spec.name for spec in groups[place])
            write_text(hosts, "".join(map(_line, groups[place])))
        if (sweep.folder / run_files.CANCELLED / cell.id).exists():
            cell.state, cell.message, command = "stopped", "cancelled before it began", []
        tell(sweep, cell)
        return command

    def ended(code: int, seconds: float) -> None:
        cell.seconds = seconds
        conclude(sweep, cell, code)
        tell(sweep, cell)

    return Work(sweep.log(cell), started, ended)


def _line(spec: NodeSpec) -> str:
    """Of a hosts file."""
    address = f" address={spec.address}" if spec.address else ""
    return f"{spec.name} slots={spec.nproc}{address}\n"


def print_commands(sweep: Sweep, where: Sequence[str] = ()) -> None:
    """Print the commands of a dry run."""
    commands = [command_of(sweep, cell, where) for cell in sweep.cells]
    json_output.emit("plan", commands=commands)
    for command in commands:
        print(shlex.join(command))


def conclude(sweep: Sweep, cell: Cell, code: int) -> None:
    """Have the cell say what came of its run, which has ended with this exit code."""
    run_dir, log = sweep.run_dir(cell), sweep.log(cell)
    cell.message, cell.results = "", None
    if code == 0:
        cell.state, cell.results = "done", results(run_dir) or None
        return
    refused = code == WRONG_INPUT and log.exists()  # before it had its folder
    end = {} if refused else run_record.read_end(run_dir) or {}
    by_itself = end.get("cause") == "program"  # which may end with such a code as well
    cell.state = "stopped" if code in STOPS and not by_itself else "failed"
    # the last line says what a traceback is about; exit.json has all of it
    message = last_line(end.get("message") or text_of(log)) or f"exit code {code}"
    if printed := last_line(end.get("output") or ""):
        message = f"{message}: {printed}"
    cell.message = message.removeprefix(f"{cell.state} ")  # it is shown behind the state


def last_line(text: str) -> str:
    """The last line that is not blank, without "error:" before it; empty if there is none."""
    return (text.strip().splitlines() or [""])[-1].removeprefix("error: ")


def text_of(log: Path) -> str:
    """The end of what was printed; empty where it has not begun."""
    return tail(log, LOG_BYTES).decode(errors="replace")


def results(run_dir: Path) -> dict[str, Any]:
    """The keys and plain values of `summary.json`, or of rank 0's last line that is JSON.

    {} if the program left neither.
    """
    found = records.read(run_files.SUMMARY, run_files.SUMMARY.path(run_dir))
    if found is None:
        found = (records.last_objects(run_files.OUTPUT.path(run_dir, rank=0)) or [{}])[-1]
    return {
        name: value
        for name, value in found.items()
        if value is None or isinstance(value, str | int | float)
    }
