"""Make a run, lead it from its first attempt to its end, and print the cause of a failure."""

import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from configs.settings.launch import without_settings_of_torchrun
from launch.agent.processes.process_tree import Stopped, between_attempts
from launch.deadlines import RESTART_ASKS_NODES_AGAIN_S
from launch.ends import End, Kind
from launch.launchers.base import Launcher, NodePool
from launch.nodes.channel import running_s
from launch.programs.base import RunProgram
from launch.programs.command_line import CommandLine
from launch.programs.project_snapshot import copy_project, new_files, path_on_nodes
from launch.programs.python_choice import say_once
from launch.runs import node_history, restart, run_record, run_state
from launch.runs.failure import Failure, end_record_of, explain, failure_of, report
from launch.runs.restart import BY_SIGNAL
from launch.spec import Facts, LaunchSpec
from muster.errors import MusterError, UsageError
from muster.printable import duration, on_one_line, printable, signal_name
from muster.run_files import EXIT, FUNCTION, SNAPSHOT

if TYPE_CHECKING:
    from launch.agent.led_run import LedRun
    from launch.runs.watching.run_document import RunEvents


def new_run(
    line: CommandLine, launcher: Launcher, facts: Facts, *, make: bool, shared: Path | None = None
) -> tuple[str, LaunchSpec]:
    """Return the program's title, and the run on these nodes; with `make`, make the run's folder.

    `shared`: a folder with a snapshot of the project that several runs use.

    Raises:
        UsageError: the program cannot start, or the folder is not free.
    """
    program: RunProgram = line.program(Path.cwd())
    is_local = launcher.name == "local"
    program.check(facts.nodes[0].python, facts.world_size, runs_here=is_local)
    if make or launcher.sees_python:
        for node in {(node.python, node.plugins): node for node in facts.nodes}.values():
            program.check_plugins(node.python, node.plugins, node.name)
    if make and program.run.overwrite and program.run.run_id is not None:
        _refuse_running(program.run.logs_root / program.run.run_id)
    run_id = run_record.with_folder(program.run, program.name, facts.size, make=make).run_id
    assert run_id is not None
    settings_of_torchrun = sorted(os.environ.keys() - without_settings_of_torchrun(os.environ))
    if make and settings_of_torchrun and not program.run.quiet:
        names = ", ".join(settings_of_torchrun)
        say_once(f"note: not passed on, since Muster sets these variables itself: {names}")
    is_sent = not facts.shared
    if not make:
        return program.title, program.spec(run_id, is_sent=is_sent, snapshot=None)
    spec = with_copies(
        program, run_id, takes_snapshot=launcher.takes_snapshot, is_sent=is_sent, shared=shared
    )
    settings = program.settings(line.launch, line.ssh, line.slurm)
    run_record.record_launch(spec, launcher.plan(spec, facts), launcher.name, settings)
    return program.title, spec


def with_copies(
    program: RunProgram,
    run_id: str,
    *,
    takes_snapshot: bool,
    is_sent: bool = False,
    shared: Path | None = None,
) -> LaunchSpec:
    """Return the run with this id, and copy the user's files that it needs.

    `takes_snapshot`: the run uses a copy of the project, unless the user wants none. `is_sent`: the
    nodes have disks of their own. `shared`: a folder for the snapshot of several runs; the first of
    these runs makes the snapshot.

    Raises:
        UsageError, CannotWrite: see `copy_project`.
    """
    sources = program.sources
    run_dir = program.run.logs_root / run_id
    snapshot = None
    if takes_snapshot and sources.project is not None:
        folder = run_dir if shared is None else shared
        snapshot = SNAPSHOT.path(folder)
        if shared is None or not snapshot.is_dir():
            summary = copy_project(sources.project, folder, sources.patterns)
            if not program.run.quiet:
                print(summary, file=sys.stderr)
        if is_sent:
            snapshot = path_on_nodes(run_id)
    program.announce(is_sent=is_sent, is_copied=snapshot is not None)
    function = FUNCTION.path(run_dir)
    if sources.function is not None and sources.function != function:
        shutil.copytree(sources.function, function)  # this keeps the modes of private files
    return program.spec(run_id, is_sent=is_sent, snapshot=snapshot)


def _refuse_running(run_dir: Path) -> None:
    """Refuse to clear the folder of a run that is going on.

    The state of a run that is led from another machine is unknown; its folder may be cleared.

    Raises:
        UsageError: the run is going on.
    """
    state = run_state.state_of(run_dir)
    if not state.is_over and state.word not in ("elsewhere", "unknown"):
        raise UsageError(
            f"--overwrite would delete the files of {run_dir.name}, which is {state.word}"
            f"\ntip: end it first: muster jobs cancel {run_dir.name}"
        )


def lead_or_submit(
    launcher: Launcher,
    spec: LaunchSpec,
    facts: Facts,
    *,
    follows: bool,
    events: "RunEvents | None" = None,
) -> int:
    """Lead the run, or submit it. The job of a submitted run has a leader, which records its end.

    `follows`: whether to wait for the end of a submitted run, and return its exit code. `events`
    gets the end of a run that was followed.

    Raises:
        MusterError: it could not be started, restarted or submitted.
    """
    if not launcher.submits:
        with run_record.ending(spec):
            pool = launcher.pool_of(spec, facts)
        return lead(pool, spec, facts)
    with run_record.ending(spec):
        submission = launcher.submit(spec, facts)
    # From here on the run continues without this process, which records nothing more about it.
    run_record.record_submission(spec, launcher.name, submission.job_id, submission.cluster)
    if not follows:
        run_record.print_next_commands(spec, f"job {submission.job_id}")
        return 0
    state = submission.follow(spec)
    end = state.end or run_state.unrecorded_end(state)
    if events is not None:
        events.end = end
    failure = failure_of(spec.run_dir, facts.world_size, end) if end["code"] else None
    _print_new_files(spec)
    return _print_end(spec, failure)


def lead(pool: NodePool, spec: LaunchSpec, facts: Facts) -> int:
    """Start the run, and restart it after a failure; return its exit code.

    Raises:
        MusterError: it could not be started or restarted.
    """
    with run_record.ending(spec):
        try:
            return _lead(pool, pool.launch(spec, facts), spec, facts)
        except Stopped as stopped:
            return _stopped(spec, 128 + stopped.number)


def _lead(pool: NodePool, run: "LedRun", spec: LaunchSpec, facts: Facts) -> int:
    """Lead the attempts of a run; no process of it is left when this returns."""
    try:
        while True:
            run_record.begin(spec, pool.name, run.job_id, cluster=run.cluster)
            cluster = run.cluster or pool.name
            nodes = facts.nodes if cluster != "local" else ()
            for line in node_history.warnings(cluster, nodes) if nodes else ():
                print(f"note: {on_one_line(line)}", file=sys.stderr)
            code = conclude(run, facts.world_size, spec)
            if nodes and code:
                lost = run.cause.node if run.cause is not None else None
                node_history.note(spec.run_dir, cluster, nodes, lost)
            if not code or run.signals or not restart.is_due(spec, code):
                return code
            if (times := restart.count_same_failures(spec.run_dir)) > 1:
                print(f"the run has failed in the same way {times} times in a row", file=sys.stderr)
            with between_attempts(run.signals):
                if pause_s := restart.pause_s(spec.run_dir):
                    text = f"the disk is full; the next attempt starts in {duration(pause_s)}"
                    print(text, file=sys.stderr, flush=True)
                    time.sleep(pause_s)
                spec = restart.next_attempt(spec)
                facts = nodes_for_restart(pool, spec, facts, run)
                print(restart.announcement(spec, len(facts.nodes)), flush=True)
            run.start(spec, facts)
    finally:
        run.close()


def conclude(run: "LedRun", world_size: int | None, spec: LaunchSpec) -> int:
    """Wait for the end of an attempt that this process leads; record it, and return its exit code.

    The cause of a failure is printed last.
    """
    code = run.wait()
    if not code or run.signals or not restart.is_possible(spec, code):
        run.close()  # when the end is recorded, no process of the run may be left
    _print_new_files(spec)
    if code in BY_SIGNAL:
        return _stopped(spec, code)
    failure = None
    if code or not run_record.all_done(spec.run_dir, world_size):
        failure = explain(spec.run_dir, world_size, code, run.cause)
    if failure is None:
        run_record.end(spec.run_dir, 0, "")
    else:
        _record(spec.run_dir, failure)
    number = spec.attempt_number if spec.max_restarts else None
    return _print_end(spec, failure, run.output_tail, number)


def _print_new_files(spec: LaunchSpec) -> None:
    """Print which files the run has made in the snapshot of its project."""
    if SNAPSHOT.path(spec.run_dir).exists():
        for line in new_files(spec.run_dir):
            print(on_one_line(line), file=sys.stderr)


def _print_end(
    spec: LaunchSpec,
    failure: Failure | None,
    output_tail: bytes = b"",
    attempt_number: int | None = None,
) -> int:
    """Print how an attempt ended, see `report`; return its exit code."""
    if failure is None:
        if not spec.quiet and (note := run_record.unconnected_workers_line(spec.run_dir)):
            print(note, file=sys.stderr)
        if not spec.quiet:
            run_record.print_done(spec.run_dir)
        return 0
    if text := report(failure, spec.run_dir, output_tail, attempt_number):
        print(printable(text), file=sys.stderr)
    return failure.code


def _record(run_dir: Path, failure: Failure) -> None:
    """Record a failure as the end of an attempt."""
    run_record.write_end(EXIT.path(run_dir), end_record_of(failure))


def _stopped(spec: LaunchSpec, code: int) -> int:
    name = signal_name(code - 128)
    end = End(Kind.SIGNAL, "", time.time(), signal=code - 128)
    _record(spec.run_dir, Failure(code, f"stopped by {name}", cause=end.kind.word, end=end))
    print(run_record.folder_line(spec.run_dir), file=sys.stderr)
    print(f"error: stopped by {name}", file=sys.stderr)
    return code


def nodes_for_restart(pool: NodePool, spec: LaunchSpec, facts: Facts, run: "LedRun") -> Facts:
    """The facts of the nodes that answer now; other nodes may be going down, or starting again.

    This prints what it waits for, and prints it again whenever that has changed.

    Raises:
        MusterError: too few of them have answered in the time that nodes wait for each other.
    """
    deadline = running_s() + spec.join_s
    printed = ""
    while True:
        try:
            return pool.probe_again(facts, run.lives)
        except MusterError as error:
            left_s = deadline - running_s()
            if left_s < 0 or not pool.waits_for_nodes:
                raise
            if str(error) != printed:
                printed = str(error)
                problems = "; ".join(printed.splitlines())
                print(
                    f"the restart is waiting (at most {duration(left_s)}): {problems}",
                    file=sys.stderr,
                )
        time.sleep(RESTART_ASKS_NODES_AGAIN_S)
