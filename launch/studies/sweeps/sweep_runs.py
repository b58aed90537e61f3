"""Runs the cells of a sweep as processes of launch/submit.py, and says what came of each."""

import fcntl
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from launch.launchers.base import chosen
from launch.runs import continuation, run_record, run_state
from launch.ssh import host_groups
from launch.studies import around_runs, cell_process, cell_results, progress_record
from launch.studies.cell_process import STOPS
from launch.studies.progress_record import Note, Notes
from launch.studies.runner import Work
from launch.studies.study_runs import why
from launch.studies.sweeps.sweep_cells import Cell, Sweep
from muster import run_files
from muster.errors import UsageError, refuse

WRONG_INPUT = UsageError.exit_code


def begin(sweep: Sweep, folder: Path, *, fresh: bool) -> Notes:
    """The record of the sweep, in which what is done already is done.

    A run is done when its exit.json says 0 and it would be the same again. `fresh`: none is.
    """
    words = [*sys.argv[1:]]
    return progress_record.begin(
        [
            Note(
                cell.id,
                dict(cell.settings),
                cell.parsed.launch.nodes and int(cell.parsed.launch.nodes),
                None,
                f"runs/{cell.id}",
                words=cell.parsed.what_runs,
            )
            for cell in sweep.cells
        ],
        folder / run_files.SWEEP,
        lambda note, was: not fresh and _is_done(folder, note, was),
        name=sweep.name,
        title=f"sweep {sweep.name}",
        about="",
        command=shlex.join(["python", "launch/sweep.py", *words]),
    )


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
                f"this sweep goes on already: {folder}; see muster jobs list, or give this one "
                "another --name"
            ) from None
        except OSError as error:  # Lustre that is mounted without flock, say
            note = f"note: {folder} cannot be locked ({error.strerror}); start this sweep once only"
            print(note, file=sys.stderr)
        yield


def checkpoints(folder: Path, cell_id: str) -> Path:
    """Where a cell has its checkpoints, through all calls of the sweep."""
    return folder / "checkpoints" / cell_id


def words_of(cell: Cell, folder: Path, hosts: Path | None = None) -> list[str]:
    """What follows launch/submit.py for one run."""
    own = checkpoints(folder, cell.id)
    place = [f"--logs-dir={folder / 'runs'}", f"--run-id={cell.id}", "--overwrite", "--quiet"]
    place.append(f"--checkpoint-dir={own}")
    if not cell.parsed.words and continuation.has_checkpoint(own, [cell.id]):
        place.append("--resume=auto")
    if hosts is not None:
        place.append(f"--hosts={hosts}")
    at = len(cell.words) - len(cell.parsed.words) - bool(cell.parsed.words)
    return [*cell.words[:at], *place, *cell.words[at:]]


class Places:
    """Where runs go on at the same time: here, or each on hosts of its own.

    Raises:
        UsageError: there are not so many hosts, or two runs would need the same port.
    """

    def __init__(self, sweep: Sweep, at_once: int, folder: Path) -> None:
        self._folder = folder
        self._groups: list[host_groups.Group] = []
        first = sweep.first
        name = chosen(first.launch)
        at_once = min(at_once, len(sweep.cells))
        if name == "ssh":
            hosts = sweep.all_hosts
            nodes = max(int(cell.parsed.launch.nodes or len(hosts)) for cell in sweep.cells)
            self._groups = host_groups.groups(hosts, nodes, at_once)
        elif first.launch.master_port is not None and at_once > 1:
            raise UsageError(
                f"--master-port {first.launch.master_port} is one port, but --at-once {at_once} "
                "runs meet on this machine; leave it out"
            )

    def hosts(self, place: int) -> Path | None:
        """The hosts file of a place; None where there are no hosts."""
        if not self._groups:
            return None
        return self._folder / "hosts" / f"group_{place}.txt"

    def write(self) -> None:
        for place, group in enumerate(self._groups):
            host_groups.write_hosts(group, self._folder / "hosts" / f"group_{place}.txt")

    def name(self, place: int) -> str | None:
        """What the table says of a place."""
        return ",".join(spec.name for spec in self._groups[place]) if self._groups else None


def works(sweep: Sweep, notes: Notes, folder: Path, places: Places, cwd: Path) -> list[Work]:
    """What is left to be run, from the user's folder `cwd`."""
    return [
        _work(cell, note, folder, places, cwd)
        for cell, note in zip(sweep.cells, notes.cells, strict=True)
        if note.state != "done"
    ]


def command_of(cell: Cell, folder: Path, hosts: Path | None) -> list[str]:
    return [sys.executable, around_runs.SUBMIT, *words_of(cell, folder, hosts)]


def _work(cell: Cell, note: Note, folder: Path, places: Places, cwd: Path) -> Work:
    log = folder / "logs" / f"{note.id}.log"

    def words(place: int) -> Sequence[str]:
        note.place, note.results = places.name(place), None
        return command_of(cell, folder, places.hosts(place))

    ended, cancelled = partial(conclude, note, folder), folder / run_files.CANCELLED / note.id
    return Work(note, words, log, ended, cwd=cwd, cancelled=cancelled)


def conclude(note: Note, folder: Path, code: int) -> None:
    """Have the note say what came of its run, which has ended with this exit code."""
    run_dir, log = folder / note.run_dir, folder / "logs" / f"{note.id}.log"
    note.message, note.results = "", None
    if code == 0:
        note.state, note.results = "done", cell_results.results(run_dir) or None
        return
    note.state = "stopped" if code in STOPS else "failed"
    refused = code == WRONG_INPUT and log.exists()  # before it had its folder
    # the last line says what a traceback is about; all of it is in exit.json
    message = cell_process.last_message(log) if refused else why(run_dir, log, code)
    note.message = cell_process.last_line(message)
