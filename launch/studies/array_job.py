"""A sweep on Slurm is one job array: task i runs cell i, and only missing cells are in it."""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from configs.settings.program import id_of
from launch.launchers.base import chosen, launcher_of
from launch.launchers.slurm import Slurm
from launch.programs.command_line import CommandLine
from launch.programs.own_program import OwnProgram
from launch.programs.project_snapshot import take
from launch.runs import run_record, run_state
from launch.slurm.current_job import current_job
from launch.spec import Facts, LaunchSpec
from launch.studies import cell_runs
from launch.studies.cells import Sweep
from launch.studies.progress_record import Note, Notes
from launch.studies.progress_table import teller
from muster import run_files
from muster.errors import MusterError, UsageError, refuse
from muster.run_files import project_of

POLL_S = 1.0


def suits(sweep: Sweep, at_once: int) -> bool:
    """Whether the runs are to be a job array: on Slurm, and not inside one of its jobs.

    Raises:
        UsageError: they would differ, or share the nodes of one job.
    """
    first = sweep.first
    if chosen(first.launch) != "slurm":
        return False
    if current_job(os.environ) is not None:
        if at_once > 1:
            raise UsageError(
                f"--at-once {at_once}, but this is inside a Slurm job, whose nodes one run takes "
                "at a time; leave it out, or call it on a login node"
            )
        return False
    refuse(
        f"{cell.id}: asks for another launch than {sweep.cells[0].id}, but all tasks of a job "
        "array ask for the same; leave nodes and the like out of the values"
        for cell in sweep.cells
        if (cell.parsed.launch, cell.parsed.slurm) != (first.launch, first.slurm)
    )
    return True


def run(sweep: Sweep, notes: Notes, folder: Path, at_once: int, cwd: Path, *, wait: bool) -> bool:
    """Submit the runs that are neither done nor running; return whether all is over.

    With `wait` it waits for that.

    Raises:
        UsageError: Slurm would not accept the job.
        KeyboardInterrupt: after a line that the job continues.
    """
    watchers = run_state.Watchers()
    left = [note for note in notes.cells if note.state != "done"]
    going = [note for note in left if not run_state.of(folder / note.run_dir, watchers).over]
    wanted = [note for note in left if note not in going]
    if wanted:
        job_id = _submit(sweep, notes, wanted, folder, at_once, cwd)
        print(f"job {job_id}: {len(wanted)} of {len(notes.cells)} runs, {at_once} at a time")
    for note in going:
        job = run_record.read_job(folder / note.run_dir) or {}
        note.place = str(job.get("job_id", ""))
    notes.write(folder / run_files.SWEEP)
    jobs = sorted({str(note.place).partition("_")[0] for note in left})
    how = f"the same command waits for it; to end it: scancel {' '.join(jobs)}"
    if not wait and left:
        print(f"sweep folder: {folder}\n  {how}")
        return False
    try:
        _watch(left, notes, folder)
    except KeyboardInterrupt:
        print(f"\njob {' '.join(jobs)} goes on; {how}", file=sys.stderr)
        raise
    return True


def _submit(
    sweep: Sweep, notes: Notes, wanted: Sequence[Note], folder: Path, at_once: int, cwd: Path
) -> str:
    launcher = launcher_of(sweep.first)
    assert isinstance(launcher, Slurm)
    try:
        facts = launcher.probe()
    except MusterError as error:
        raise UsageError(str(error)) from None
    number = 1 + sum(1 for _ in (folder / "submissions").glob("*"))
    submission = folder / "submissions" / f"{number:03d}"
    own = sweep.first.own
    if own is not None and own.snapshot:
        print(take(project_of(cwd), submission, own.patterns), file=sys.stderr)
    submission.mkdir(parents=True, exist_ok=True)
    ids = {note.id for note in wanted}
    specs = {
        index: _prepare(
            CommandLine.of(cell_runs.words_of(sweep, cell, folder)),
            launcher,
            facts,
            submission,
            cwd,
        )
        for index, cell in enumerate(sweep.cells)
        if cell.id in ids
    }
    try:
        array, cluster = launcher.submit_array(specs, facts, submission, at_once)
    except MusterError as error:
        for spec in specs.values():
            run_record.end(spec, error.exit_code, str(error))
        raise
    for index, spec in specs.items():
        note = notes.of(spec.run_id)
        note.place, note.state, note.message = f"{array}_{index}", "waiting", ""
        job = run_record.read_job(spec.run_dir) or {}
        if job.get("job_id") == run_record.NOT_YET:  # otherwise its task has begun already
            run_record.begin(spec, "slurm", note.place, cluster=cluster)
    return array


def _prepare(
    one: CommandLine, launcher: Slurm, facts: Facts, submission: Path, cwd: Path
) -> LaunchSpec:
    """A run with its folder, as launch/submit.py makes it; all share one snapshot."""
    program = one.program(cwd)
    if isinstance(program, OwnProgram):  # the user's programs were checked before
        program.check(facts.nodes[0].python, facts.world_size)
    id_of(program.run, program.name, facts.size, make=True)
    spec = program.spec(make=True, snapshot=True, earlier=submission)
    settings = program.settings(one.launch, one.ssh, one.slurm)
    run_record.write_down(spec, launcher.plan(spec, facts), "slurm", settings)
    return spec


def _watch(left: Sequence[Note], notes: Notes, folder: Path) -> None:
    watchers, waiting = run_state.Watchers(), list(left)
    tell = teller(notes, folder / run_files.SWEEP)
    while waiting:
        dirs = [folder / note.run_dir for note in waiting]
        states = run_state.of_all(dirs, watchers)
        for note, found in zip(list(waiting), states, strict=True):
            before = note.state
            _note_down(note, found, folder)
            if found.over:
                waiting.remove(note)
            if note.state != before:
                tell(note)
        if waiting:
            time.sleep(POLL_S)


def _note_down(note: Note, found: run_state.State, folder: Path) -> None:
    run_dir = folder / note.run_dir
    end, job = run_record.read_end(run_dir), run_record.read_job(run_dir) or {}
    started_s = float(job.get("started_unix_s", time.time()))
    if not found.over:
        note.state = "waiting" if found.word in ("pending", "requeued") else "running"
        note.seconds = time.time() - started_s if note.state == "running" else 0.0
    elif end is None:  # ended before it began, or lost
        note.state = "stopped" if found.word == "cancelled" else "failed"
        note.message = f"{found.word}; {found.detail}"
    else:
        note.seconds = float(end["time_unix_s"]) - started_s
        cell_runs.conclude(note, folder, int(end["code"]))
