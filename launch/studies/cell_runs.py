"""Runs the cells of a sweep as processes of launch/submit.py, and says what came of each."""

import fcntl
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from configs.plugins import REPOSITORY
from launch.launchers.base import chosen
from launch.runs import restart, run_record, run_state
from launch.spec import NodeSpec
from launch.studies import cell_process, progress_record
from launch.studies.cell_process import STOPS, Work
from launch.studies.cells import Cell, Sweep
from launch.studies.progress_record import Note, Notes
from muster import json_output, run_files
from muster.errors import UsageError, refuse
from muster.writing import read_json, write_text

SUBMIT = str(REPOSITORY / "launch" / "submit.py")

WRONG_INPUT = UsageError.exit_code


def begin(sweep: Sweep, folder: Path, *, fresh: bool = False) -> Notes:
    """The record of the sweep, in which what is done already is done.

    A run is done when its exit.json says 0 and it would be the same again. `fresh`: none is.
    """
    earlier = {one.id: one for one in progress_record.earlier(folder / sweep.record)}
    cells = []
    for cell in sweep.cells:
        note = _note(sweep, cell)
        was = None if fresh else earlier.get(cell.id)
        if was is not None and _is_done(folder, note, was):
            note = replace(was, name=note.name)
        cells.append(note)
    script = "launch/study.py" if sweep.is_study else "launch/sweep.py"
    command = shlex.join(["python", script, *sys.argv[1:]])
    texts = dict(sweep.texts)
    return Notes(sweep.name, sweep.title, sweep.about, command, time.time(), cells, texts)


def _note(sweep: Sweep, cell: Cell) -> Note:
    words = None if sweep.is_study else cell.parsed.what_runs  # a study's settings are all of it
    nodes = cell.nodes or (1 if sweep.is_study else None)
    where = f"runs/{cell.id}"
    settings = dict(cell.settings)
    return Note(cell.id, settings, nodes, cell.repeat, where, cell.name, words=words)


def _is_done(folder: Path, note: Note, was: Note) -> bool:
    is_same = (note.settings, note.words, note.nodes) == (was.settings, was.words, was.nodes)
    end = run_record.read_end(folder / note.run_dir)
    if is_same and end is not None and end["code"] == 0:
        conclude(was, folder, 0)  # also where nobody was left to write it down
        return True
    return False


def wait_for_last(sweep: Sweep, folder: Path) -> None:
    """Stay until nothing goes on of a call that was killed: its runs end in order by themselves.

    Raises:
        UsageError: a run goes on after a while, or is on another machine.
    """
    watchers, deadline = run_state.Watchers(), time.monotonic() + run_state.PATIENCE_S
    dirs = {cell.id: folder / "runs" / cell.id for cell in sweep.cells}
    while going := {
        name: state
        for name, state in zip(dirs, run_state.of_all([*dirs.values()], watchers), strict=True)
        if not state.over
    }:
        if time.monotonic() > deadline or any(one.word != "running" for one in going.values()):
            refuse(
                f"{name} goes on: {state.word}, {state.detail}; wait for it, or end it: "
                f"muster jobs cancel {name}"
                for name, state in going.items()
            )
        time.sleep(1)


def forget(notes: Notes, folder: Path) -> None:
    """Remove what earlier runs of these cells have left, checkpoints too."""
    for note in notes.cells:
        for path in (folder / note.run_dir, checkpoints(folder, note.id)):
            if path.exists():
                shutil.rmtree(path)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Inside it, nobody else leads this sweep; the kernel ends that with the process.

    On a file system without locks that is for the user to see to.

    Raises:
        UsageError: somebody does.
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
        except OSError as error:  # Lustre that is mounted without flock, say
            note = f"note: {folder} cannot be locked ({error.strerror}); start this sweep once only"
            print(note, file=sys.stderr)
        yield


def checkpoints(folder: Path, cell_id: str) -> Path:
    """Where a cell has its checkpoints, through all calls of the sweep."""
    return folder / "checkpoints" / cell_id


def words_of(sweep: Sweep, cell: Cell, folder: Path, where: Sequence[str] = ()) -> list[str]:
    """What follows launch/submit.py for one run; `where`: flags that say on which nodes."""
    place = [f"--logs-dir={folder / 'runs'}", f"--run-id={cell.id}", "--overwrite", "--quiet"]
    if not sweep.is_study:  # whose runs are measured from their beginning
        own = checkpoints(folder, cell.id)
        place.append(f"--checkpoint-dir={own}")
        if not cell.parsed.words and restart.has_checkpoint(own, [cell.id]):
            place.append("--resume=auto")
    at = len(cell.words) - len(cell.parsed.words) - bool(cell.parsed.words)
    return [*cell.words[:at], *where, *place, *cell.words[at:]]


class Places:
    """Where runs go on at the same time: here, or each on hosts of its own.

    Raises:
        UsageError: there are not so many hosts, or two runs would need the same port.
    """

    def __init__(self, sweep: Sweep, at_once: int, folder: Path) -> None:
        self._folder = folder
        self._groups: list[Sequence[NodeSpec]] = []
        first = sweep.first
        name = chosen(first.launch)
        at_once = min(at_once, len(sweep.cells))
        if name == "ssh":
            hosts = sweep.all_hosts
            nodes = max(int(cell.parsed.launch.nodes or len(hosts)) for cell in sweep.cells)
            self._groups = _dealt_out(hosts, nodes, at_once)
        elif first.launch.master_port is not None and at_once > 1:
            raise UsageError(
                f"--master-port {first.launch.master_port} is one port, but --at-once {at_once} "
                "runs meet on this machine; leave it out"
            )

    def flags(self, place: int) -> list[str]:
        """Those that say which hosts a place has; none where there are no hosts."""
        file = self._folder / "hosts" / f"group_{place}.txt"
        return [f"--hosts={file}"] if self._groups else []

    def write(self) -> None:
        for place, group in enumerate(self._groups):
            lines = ""
            for spec in group:
                address = f" address={spec.address}" if spec.address else ""
                lines += f"{spec.name} slots={spec.nproc}{address}\n"
            write_text(self._folder / "hosts" / f"group_{place}.txt", lines)

    def name(self, place: int) -> str | None:
        """What the table says of a place."""
        return ",".join(spec.name for spec in self._groups[place]) if self._groups else None


def _dealt_out(hosts: Sequence[NodeSpec], nodes: int, at_once: int) -> list[Sequence[NodeSpec]]:
    """`at_once` groups of `nodes` hosts, in their order.

    Raises:
        UsageError: there are not so many hosts.
    """
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


def work_of(
    sweep: Sweep,
    cell: Cell,
    note: Note,
    folder: Path,
    flags: Callable[[int], Sequence[str]],
    name: Callable[[int], str | None] = lambda place: None,
    **how: Any,
) -> Work:
    """One run; `flags` say on which nodes it is, given its place among those at a time.

    `name` is what the table calls that place; `how` is more of `Work`.
    """

    def words(place: int) -> Sequence[str]:
        note.place, note.results = name(place), None
        return command_of(sweep, cell, folder, flags(place))

    ended, cancelled = partial(conclude, note, folder), folder / run_files.CANCELLED / note.id
    return Work(note, words, _log(folder, note), ended, cancelled=cancelled, **how)


def command_of(sweep: Sweep, cell: Cell, folder: Path, where: Sequence[str] = ()) -> list[str]:
    return [sys.executable, SUBMIT, *words_of(sweep, cell, folder, where)]


def print_commands(sweep: Sweep, folder: Path, where: Sequence[str] = ()) -> None:
    """What a dry run shows."""
    commands = [command_of(sweep, cell, folder, where) for cell in sweep.cells]
    json_output.emit("plan", commands=commands)
    for command in commands:
        print(shlex.join(command))


def conclude(note: Note, folder: Path, code: int) -> None:
    """Have the note say what came of its run, which has ended with this exit code."""
    run_dir, log = folder / note.run_dir, _log(folder, note)
    note.message, note.results = "", None
    if code == 0:
        note.state, note.results = "done", results(run_dir) or None
        return
    note.state = "stopped" if code in STOPS else "failed"
    refused = code == WRONG_INPUT and log.exists()  # before it had its folder
    end = {} if refused else read_json(run_files.EXIT.path(run_dir)) or {}
    # the last line says what a traceback is about; all of it is in exit.json
    message = end.get("message") or cell_process.last_message(log) or f"exit code {code}"
    note.message = cell_process.last_line(message)


def results(run_dir: Path) -> dict[str, Any]:
    """The keys and plain values of `summary.json`, or of rank 0's last line that is JSON.

    {} where the program left neither.
    """
    found = read_json(run_files.SUMMARY.path(run_dir))
    if found is None:
        found = (run_files.last_objects(run_files.OUTPUT.path(run_dir, rank=0)) or [{}])[-1]
    return {
        name: value
        for name, value in found.items()
        if value is None or isinstance(value, str | int | float)
    }


def _log(folder: Path, note: Note) -> Path:
    return folder / "logs" / f"{note.id}.log"
