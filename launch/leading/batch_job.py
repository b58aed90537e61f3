"""Lead a run to its end on the first node of its own job; this is a batch script's last command.

    python -m launch.leading.batch_job new [flags] [-- PROGRAM ...]    from sbatch slurm/*.sh
    python -m launch.leading.batch_job run RUN_DIR                     from submit.py, or a sweep

A run over ssh has the same leader at a terminal; here the scheduler starts the leader's agents.
`new` refuses wrong flags and makes the run folder. `run` uses an existing folder, and so does `new`
in a job that was requeued: the run continues with its next attempt. At the run's end this module
sets the job's exit code, and decides whether the job is requeued.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from configs.settings.fields import add_new
from configs.settings.launch import ONE_PER_GPU, ONE_WORKER
from launch.in_job import run_job
from launch.in_job.job_nodes import JobNodes
from launch.in_job.run_job import Notice
from launch.leading.leader import lead, with_copies
from launch.nodes.scheduler import SchedulerJob, job_class
from launch.programs.base import RunProgram
from launch.programs.command_line import SUBMISSION_SETTINGS, CommandLine
from launch.programs.other_launchers import refuse_several
from launch.runs import restart, run_record
from launch.spec import LaunchSpec, size_of
from muster.errors import MusterError, UsageError, print_problems, refuse, run
from muster.worker.process import end_with_parent


def main() -> int:
    end_with_parent()  # if the scheduler's supervisor is gone, nobody can end this process
    verb, *words = sys.argv[1:]
    if verb == "new":
        refuse_several(os.environ)  # srun slurm/multinode.sh
    of_scheduler = job_class(os.environ)
    if of_scheduler is None:
        raise MusterError(
            "this is not inside a Slurm job\ntip: submit it: sbatch slurm/multinode.sh"
        )
    current = of_scheduler.from_env(os.environ)
    notice = Notice(current.end_unix_s())  # from now on the notice can come
    run_job.refuse_too_many(current)
    if verb == "new":
        spec, job = begin_run(words, current)
    else:
        spec, job = open_run(Path(words[0]), current)
    return _lead(spec, job, current, notice)


def _lead(
    spec: LaunchSpec, job: Mapping[str, object], current: SchedulerJob, notice: Notice
) -> int:
    pool = JobNodes(current, job, sys.executable, spec.least_nodes, notice.has_come)
    # the process that submitted the job may have been killed before it recorded the number
    run_record.begin(spec, pool.name, current.name, cluster=current.cluster)
    try:
        code = lead(pool, spec, pool.probe())
    except MusterError as error:
        print_problems(error.problems)
        code = error.exit_code
    run_job.requeue_if_useful(spec.run_dir, code, current, job)
    return code


def open_run(run_dir: Path, current: SchedulerJob) -> tuple[LaunchSpec, Mapping[str, object]]:
    """The run in this folder; in a job that was requeued, its next attempt."""
    try:
        spec, job = run_job.read_spec(run_dir)
    except UsageError as error:
        run_record.end(run_dir, error.exit_code, str(error))
        raise
    if current.attempt:
        spec = restart.next_attempt(replace(spec, attempt=restart.last_attempt(spec)))
        run_job.write_spec(spec, job)
    return spec, job


def begin_run(
    flags: Sequence[str], current: SchedulerJob
) -> tuple[LaunchSpec, Mapping[str, object]]:
    """Make a new run and its folder, with these settings; return it, and what else its job needs.

    A job that was requeued continues its existing run.

    Raises:
        UsageError: flags are wrong; all problems are reported together.
    """
    line, problems = CommandLine.read(flags, prog="sbatch slurm/*.sh")
    launch = line.launch
    cwd = current.folder
    add_new(problems, _problems(line, current))
    if not current.attempt:  # a later attempt runs the snapshot of the first
        add_new(problems, line.missing(cwd, current.launcher))
    refuse(problems)
    program: RunProgram = line.program(cwd)
    for note in filter(None, (line.trainer_note, *current.notes(launch))):
        print(note, file=sys.stderr, flush=True)
    earlier = run_job.run_of_job(program.run.logs_root, current) if current.attempt else None
    if earlier is not None:
        return open_run(earlier, current)
    default = ONE_PER_GPU if current.gpus else ONE_WORKER
    counts = launch.nproc(default, current.num_nodes)
    program.check_plugins(sys.executable)
    numbers = [nproc.number for nproc in counts if nproc.number is not None]
    world_size = sum(numbers) if len(numbers) == len(counts) else None
    program.check(sys.executable, world_size, runs_here=True)
    size = f"{size_of(counts)}-job{current.name}"
    run_id = run_record.with_folder(program.run, program.name, size, make=True).run_id
    assert run_id is not None
    spec = replace(
        with_copies(program, run_id, takes_snapshot=True),
        least_nodes=launch.least_nodes if launch.nodes else current.num_nodes,
    )
    nproc = [count.to_json() for count in counts]
    job = {"nproc": nproc, "network": launch.network, "master_port": launch.master_port}
    job["output"] = current.output
    run_job.write_spec(spec, job)
    run_record.record_launch(spec, [], current.launcher, program.settings(launch))
    return spec, job


def _problems(line: CommandLine, current: SchedulerJob) -> Iterator[str]:
    """The problems with settings that the scheduler has already decided."""
    launch = line.launch
    others = SUBMISSION_SETTINGS - ({"launcher"} if launch.launcher == current.launcher else set())
    why = (
        "has no effect in a script whose job has started\ntip: put sbatch options before the script"
    )
    yield from line.refused(others, why)
    yield from current.problems()
    wanted = len(launch.nproc(nodes=launch.most_nodes or current.num_nodes))
    if wanted != current.num_nodes:
        yield (
            f"--nodes {wanted}, but the job has {current.num_nodes}"
            "\ntip: put it before the script: sbatch --nodes 4 slurm/multinode.sh"
        )


if __name__ == "__main__":
    run(main)
