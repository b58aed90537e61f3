"""Run a sweep through a scheduler as one job array, with a task for each run that is missing."""

import sys
import time
from collections.abc import Sequence

from launch.deadlines import ARRAY_JOB_TICK_S
from launch.launchers.base import launcher_of
from launch.leading.leader import new_run
from launch.programs.command_line import CommandLine
from launch.runs import run_record, run_state
from launch.runs.run_state import Watchers
from launch.studies.cell_runs import command_of, record_end, unfinished
from launch.studies.cells import Cell, Sweep
from launch.studies.progress_table import report_change
from muster.errors import MusterError, UsageError, refuse


def can_use_job_array(sweep: Sweep, at_once: int) -> bool:
    """Whether to submit the runs as a job array: with Slurm, but not inside a Slurm job.

    Raises:
        UsageError: the runs request different resources, or would share the nodes of one job.
    """
    first = sweep.first
    launcher = launcher_of(first)
    if not launcher.has_arrays:
        return False
    if not launcher.submits:
        if at_once > 1:
            raise UsageError(
                f"--at-once {at_once}, but inside a Slurm job only one run at a time can use the "
                "nodes"
                "\ntip: leave it out, or start the sweep on a login node"
            )
        return False
    refuse(
        f"{cell.id}: requests other resources than {sweep.cells[0].id}, but all tasks of a job "
        "array must request the same"
        "\ntip: do not vary nodes and other resources"
        for cell in sweep.cells
        if (cell.parsed.launch, cell.parsed.slurm) != (first.launch, first.slurm)
    )
    return True


def run(sweep: Sweep, at_once: int, *, wait: bool) -> bool:
    """Submit the runs that are neither done nor running; return whether all runs are over.

    With `wait`, it returns only when all runs have ended.

    Raises:
        UsageError: Slurm would not accept the job.
        KeyboardInterrupt: after a printed line that the job continues.
    """
    left = sweep.unfinished
    running = unfinished(sweep, Watchers())
    missing = [cell for cell in left if cell not in running]
    if missing:
        job_id = _submit(sweep, missing, at_once)
        print(f"job {job_id}: {len(missing)} of {len(sweep.cells)} runs, {at_once} at a time")
    for cell in left:
        cell.place = str((run_record.read_job(sweep.run_dir(cell)) or {}).get("job_id", ""))
    sweep.write()
    jobs = sorted({str(cell.place).partition("_")[0] for cell in left})
    hint = f"to wait for it, run the same command; to end it: scancel {' '.join(jobs)}"
    if not wait and left:
        print(f"sweep folder: {sweep.folder}\n  {hint}")
        return False
    try:
        _watch(sweep, left)
    except KeyboardInterrupt:
        print(f"\njob {' '.join(jobs)} continues; {hint}", file=sys.stderr)
        raise
    return True


def _submit(sweep: Sweep, cells: Sequence[Cell], at_once: int) -> str:
    """Submit these cells as one job array; return its job id."""
    launcher = launcher_of(sweep.first)
    try:
        facts = launcher.probe()
        most = launcher.most_in_array()
    except MusterError as error:
        raise UsageError("\n".join(error.problems)) from None
    if len(cells) > most:
        raise UsageError(
            f"{len(cells)} runs, but this cluster allows only {most} in a job array (MaxArraySize)"
            "\ntip: divide the values among several sweeps"
        )
    number = 1 + sum(1 for _ in (sweep.folder / "submissions").glob("*"))
    submission = sweep.folder / "submissions" / f"{number:03d}"
    folder = launcher.job_folder(submission)
    submission.mkdir(parents=True)
    specs = []
    for cell in cells:
        line = CommandLine.parse(command_of(sweep, cell)[2:])
        specs.append(new_run(line, launcher, facts, make=True, shared=submission)[1])
    try:
        job_ids, cluster = launcher.submit_array(sweep.folder.name, specs, facts, folder, at_once)
    except MusterError as error:
        for spec in specs:
            run_record.end(spec.run_dir, error.exit_code, str(error))
        raise
    for spec, job_id in zip(specs, job_ids, strict=True):
        run_record.record_submission(spec, launcher.name, job_id, cluster)
    return job_ids[0].partition("_")[0]


def _watch(sweep: Sweep, waiting: Sequence[Cell]) -> None:
    """Report each change of these cells, until their runs are over."""
    watchers = Watchers()
    unrecorded = list[Cell]()
    while waiting:
        states = run_state.states_of([sweep.run_dir(cell) for cell in waiting], watchers)
        left = []
        for cell, state in zip(waiting, states, strict=True):
            if state.is_over and cell not in unrecorded and not _is_recorded(sweep, cell):
                unrecorded.append(cell)  # its record may appear here later than Slurm's report
                left.append(cell)
                continue
            before = cell.state
            _update(sweep, cell, state)
            if cell.state != before:
                report_change(sweep, cell)
            if not state.is_over:
                left.append(cell)
        waiting = left
        time.sleep(ARRAY_JOB_TICK_S if waiting else 0)


def _is_recorded(sweep: Sweep, cell: Cell) -> bool:
    return run_record.read_end(sweep.run_dir(cell)) is not None


def _update(sweep: Sweep, cell: Cell, state: run_state.RunStatus) -> None:
    """Set the cell's state and results from the state of its run."""
    end = run_record.read_end(sweep.run_dir(cell))
    job = run_record.read_job(sweep.run_dir(cell)) or {}
    started_s = float(job.get("started_unix_s", time.time()))
    if not state.is_over:
        cell.state = "waiting" if state.word in ("pending", "requeued") else "running"
        cell.seconds = time.time() - started_s if cell.state == "running" else 0.0
        return
    if end is not None:
        cell.seconds = float(end["time_unix_s"]) - started_s
    record_end(sweep, cell, end or state.end or run_record.end_record(1, state.word))
