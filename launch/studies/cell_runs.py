"""Run the cells of a sweep as processes of launch/submit.py, and record each result."""

import fcntl
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launch.agent.processes.process_tree import on_stop
from launch.deadlines import CELL_RUN_TICK_S, CELL_TRIED_AGAIN_S
from launch.ends import state_word
from launch.launchers.base import launcher_name, launcher_of
from launch.programs.command_line import split_program
from launch.runs import restart, run_record, run_state
from launch.spec import NodeSpec
from launch.studies.cells import Cell, Sweep
from launch.studies.progress_table import report_change
from muster import json_output, records, run_files
from muster.checkout import CHECKOUT
from muster.errors import STOPPED, UsageError
from muster.orderly_stop import ALSO_STOP, STOP_SIGNALS, without_advice
from muster.records import fits
from muster.terminal import TIP
from muster.worker.process import end_with_parent
from muster.writing import read_json, tail, write_text

SUBMIT = str(CHECKOUT / "launch" / "submit.py")
WRONG_INPUT = UsageError.exit_code
PIPED = "settings.yaml"  # a copy of a --config that was a pipe, which no run can read again
# The types of fields of a cell's record that an earlier call wrote.
CELL = {
    "id": str,
    "seconds?": records.is_number,
    "place?": (str, None),
}
# Exit codes of a run that was stopped, cleanly or by a signal.
STOPS = (STOPPED, 130, 143, -signal.SIGINT, -signal.SIGTERM)

LOG_BYTES = 65_536  # read from the end of a log, to find its last line


@dataclass(frozen=True)
class Work:
    """A command to run."""

    log: Path  # for its output
    # Returns the command's words; none if the command is not to run. The argument is its index
    # among the commands that run at the same time.
    begin: Callable[[int], Sequence[str]]
    # Called with the exit code and the command's duration in seconds. It may return a signal, which
    # stops all commands as if it had been sent to this process.
    ended: Callable[[int, float], int | None]
    cwd: Path | None = None  # where the command runs; None: in this process's folder


def run_all(works: Iterable[Work], at_once: int = 1) -> int | None:
    """Run the commands in order, at most `at_once` at a time; return the signal that stopped them.

    A signal to stop is passed on to the running commands, which then stop their runs in an orderly
    way. No further command is started.
    """
    waiting = list(works)
    free = list(range(at_once))  # indices for commands that may start
    signals: list[int] = []
    passed_on = 0  # how many of the signals have been passed on
    started: dict[int, tuple[Work, subprocess.Popen[bytes], float]] = {}
    before = [(number, signal.getsignal(number)) for number in (*STOP_SIGNALS, *ALSO_STOP)]
    on_stop(lambda number, _: signals.append(number))
    try:
        while started or (waiting and not signals):
            while waiting and free and not signals:
                work = waiting.pop(0)
                if words := work.begin(free[0]):
                    started[free.pop(0)] = (work, _start(work, words), time.monotonic())
            for number in signals[passed_on:]:
                passed_on += 1
                for _, process, _ in started.values():
                    process.send_signal(number)
            for index, (work, process, began_s) in list(started.items()):
                if (code := process.poll()) is not None:
                    del started[index]
                    free = sorted([*free, index])
                    if stopped_by := work.ended(code, time.monotonic() - began_s):
                        signals.append(stopped_by)
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
            process_group=0,  # a terminal's Ctrl-C reaches this process, which passes it on
            preexec_fn=partial(end_with_parent, signal.SIGTERM),  # noqa: PLW1509  # no threads here
        )


def begin(sweep: Sweep, *, fresh: bool = False) -> None:
    """Begin the record, in which runs that an earlier call completed are done already.

    A run is done if its exit.json has code 0, and its settings, words and nodes are the same as
    before. With `fresh` no run is done: the folders and checkpoints of earlier runs are removed.
    """
    last = {} if fresh else _last_record(sweep.file)
    earlier = {cell["id"]: cell for cell in last.get("cells", ()) if fits(cell, CELL)}
    sweep.texts_before = last.get("texts_before", last.get("texts", sweep.texts))
    for cell in sweep.cells:
        before = earlier.get(cell.id, {})
        record = cell.record()
        is_same = all(before.get(name) == record[name] for name in ("settings", "words", "nodes"))
        if is_same and (run_record.read_end(sweep.run_dir(cell)) or {}).get("code") == 0:
            cell.seconds = before.get("seconds", 0.0)
            cell.place = before.get("place")
            record_result(sweep, cell, 0)  # the earlier call may have been killed before this
        for path in (sweep.run_dir(cell), sweep.checkpoints(cell)) if fresh else ():
            if path.exists():
                shutil.rmtree(path)
    if (piped := sweep.first.parsed.piped) is not None:
        write_text(sweep.folder / PIPED, piped)
    sweep.write()


def _last_record(file: Path) -> dict[str, Any]:
    """The record of an earlier call; empty if there was none.

    Raises:
        UsageError: the file exists, but is not a record, so it is not known which runs are done.
    """
    record = read_json(file) or {}
    if not isinstance(record.get("cells"), list) and file.exists():
        raise UsageError(
            f"{file} cannot be read, so it is not known which runs are done"
            "\ntip: remove it to start all runs again"
        )
    return record


def unfinished(sweep: Sweep, watchers: run_state.Watchers) -> list[Cell]:
    """The cells whose runs are not over: runs of an earlier call, or jobs that are waiting."""
    states = run_state.states_of([sweep.run_dir(cell) for cell in sweep.cells], watchers)
    return [cell for cell, state in zip(sweep.cells, states, strict=True) if not state.is_over]


def wait_for_last(sweep: Sweep) -> None:
    """Wait for the runs of an earlier call that was killed; they end in good order on their own."""
    watchers = run_state.Watchers()
    named: list[Cell] = []
    while cells := unfinished(sweep, watchers):
        for cell in (cell for cell in cells if cell not in named):
            print(
                f"{cell.id} is still running; to end it: muster jobs cancel {cell.id}",
                file=sys.stderr,
            )
        named = cells
        time.sleep(CELL_TRIED_AGAIN_S)


@contextmanager
def sweep_lock(folder: Path) -> Iterator[None]:
    """A context in which no other process runs this sweep; the kernel releases the lock.

    On a file system without locks, users themselves must not start the same sweep twice.

    Raises:
        UsageError: another process runs this sweep.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / run_files.SWEEP_LOCK).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"this sweep is already running: {folder}"
                "\ntip: see muster jobs list, or use another --name"
            ) from None
        except OSError as error:  # for example Lustre mounted without flock
            note = (
                f"note: {folder} cannot be locked ({error.strerror})"
                "\ntip: do not start this sweep twice"
            )
            print(note, file=sys.stderr)
        yield


def command_of(sweep: Sweep, cell: Cell, where: Sequence[str] = ()) -> list[str]:
    """The command of one run; the flags in `where` select its nodes."""
    runs = sweep.folder / "runs"
    of_sweep = [f"--logs-dir={runs}", f"--run-id={cell.id}", "--overwrite", "--quiet"]
    of_sweep += config_flags(sweep)
    if not sweep.is_measured:
        checkpoints = sweep.checkpoints(cell)
        of_sweep.append(f"--checkpoint-dir={checkpoints}")
        if not cell.parsed.words and restart.has_checkpoint(checkpoints, [cell.id]):
            of_sweep.append("--resume=auto")
    flags, _ = split_program(cell.words)
    return [sys.executable, SUBMIT, *flags, *where, *of_sweep, *cell.words[len(flags) :]]


def host_groups(sweep: Sweep, at_once: int) -> list[Sequence[NodeSpec]]:
    """The hosts for each of the runs at the same time; empty unless the launcher is ssh.

    Raises:
        UsageError: there are too few hosts, or two runs would need the same port.
    """
    launch = sweep.first.launch
    at_once = min(at_once, len(sweep.cells))
    if launcher_name(launch) != "ssh":
        if launch.master_port is not None and at_once > 1:
            raise UsageError(
                f"--master-port {launch.master_port} is one port, but --at-once {at_once} "
                "runs share this machine"
                "\ntip: leave it out"
            )
        return []
    everyone = replace(sweep.first, launch=replace(launch, nodes=None))
    hosts = [node.spec for node in launcher_of(everyone).assume().nodes]
    nodes = max(cell.nodes or len(hosts) for cell in sweep.cells)
    if at_once * nodes > len(hosts):
        names = ", ".join(spec.name for spec in hosts[:8]) + (", ..." if len(hosts) > 8 else "")
        most = len(hosts) // nodes
        remedy = f"use --at-once {most}" if most else f"use --nodes {len(hosts)}"
        raise UsageError(
            f"--at-once {at_once} with {nodes} {'node' if nodes == 1 else 'nodes'} each needs "
            f"{at_once * nodes} hosts, but there are {len(hosts)} ({names}), enough for {most} at "
            f"a time{TIP}{remedy}"
        )
    return [hosts[index * nodes : (index + 1) * nodes] for index in range(at_once)]


def config_flags(sweep: Sweep) -> list[str]:
    """The flag for the saved copy of a --config that was a pipe; empty if there is no such copy."""
    return [] if sweep.first.parsed.piped is None else [f"--config={sweep.folder / PIPED}"]


def hosts_file(sweep: Sweep, index: int) -> Path:
    """The hosts file of a group of hosts."""
    return sweep.folder / "hosts" / f"group_{index}.txt"


def work_of(
    sweep: Sweep,
    cell: Cell,
    flags: Sequence[str],
    groups: Sequence[Sequence[NodeSpec]],
    meanwhile: AbstractContextManager[None],
) -> Work:
    """The work of one run, which sets the cell's state and results.

    The run uses the nodes in `flags`. With `groups` it uses one of these groups of hosts, chosen by
    its index among the runs at the same time. The context `meanwhile` lasts as long as the run.
    """
    during = ExitStack()

    def start_run(index: int) -> Sequence[str]:
        is_cancelled = (sweep.folder / run_files.CANCELLED / cell.id).exists()
        cell.state = "stopped" if is_cancelled else "running"
        cell.message = "cancelled before it began" if is_cancelled else ""
        cell.results = None
        where = flags
        if groups:
            hosts = hosts_file(sweep, index)
            write_text(hosts, "".join(map(_line, groups[index])))
            where = [f"--hosts={hosts}"]
            cell.place = ",".join(spec.name for spec in groups[index])
        report_change(sweep, cell)
        if is_cancelled:
            return ()
        during.enter_context(meanwhile)
        return command_of(sweep, cell, where)

    def ended(code: int, seconds: float) -> int | None:
        during.close()
        cell.seconds = seconds
        record_result(sweep, cell, code)
        report_change(sweep, cell)
        return signal.SIGTERM if sweep.is_measured and cell.state == "stopped" else None

    return Work(sweep.log(cell), start_run, ended, sweep.cwd)


def _line(spec: NodeSpec) -> str:
    """A node's line in a hosts file."""
    address = f" address={spec.address}" if spec.address else ""
    return f"{spec.name} slots={spec.nproc}{address}\n"


def print_commands(sweep: Sweep, where: Sequence[str] = ()) -> None:
    """Print the commands of a dry run."""
    commands = [command_of(sweep, cell, where) for cell in sweep.cells]
    json_output.emit("plan", commands=commands)
    for command in commands:
        print(shlex.join(command))


def record_result(sweep: Sweep, cell: Cell, code: int) -> None:
    """Set the cell's state and results after its run has ended with this exit code."""
    is_refused = code == WRONG_INPUT and sweep.log(cell).exists()  # the run has made no folder
    end = {} if is_refused else run_record.read_end(sweep.run_dir(cell)) or {}
    record_end(sweep, cell, {**end, "code": code})


def record_end(sweep: Sweep, cell: Cell, end: Mapping[str, Any]) -> None:
    """Set the cell's state and results from the record of its run's end, or from a part of it."""
    code = end["code"]
    cell.message = ""
    cell.results = None
    if code == 0:
        cell.state = "done"
        cell.results = results(sweep.run_dir(cell)) or None
        return
    # a negative code: a signal has ended the command
    cell.state = state_word(128 - code) if code < 0 else state_word(code, end.get("cause", ""))
    # the last line of a traceback has the error; exit.json has the whole traceback
    message = last_line(end.get("message") or text_of(sweep.log(cell))) or f"exit code {code}"
    if output := last_line(end.get("output") or ""):
        message = f"{message}: {output}"
    if cell.state == "stopped":  # its advice is for a single run; a sweep is continued as a whole
        message = without_advice(message)
    cell.message = message.removeprefix(f"{cell.state} ")  # it is printed after the state


def last_line(text: str) -> str:
    """The last line that is not blank, without "error:" before it; empty if there is none."""
    return (text.strip().splitlines() or [""])[-1].removeprefix("error: ")


def text_of(log: Path) -> str:
    """The end of a log; empty if there is no such file."""
    return tail(log, LOG_BYTES).decode(errors="replace")


def results(run_dir: Path) -> dict[str, Any]:
    """The keys and plain values of `summary.json`, or of the last line of rank 0 that is JSON.

    Empty if the program has written neither.
    """
    summary = records.read(run_files.SUMMARY, run_files.SUMMARY.path(run_dir))
    if summary is None:
        summary = (records.last_objects(run_files.OUTPUT.path(run_dir, rank=0)) or [{}])[-1]
    return {
        name: value
        for name, value in summary.items()
        if value is None or isinstance(value, str | int | float)
    }
