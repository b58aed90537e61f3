"""What a Slurm batch script asks on the first node of its job, before and after srun.

    run_dir=$(python -m launch.slurm.batch begin torchrun [train flags])
    more=$(python -m launch.slurm.batch next "$run_dir" "$exit_code")

`begin` refuses wrong flags, makes the run folder, and decides at which address and ports the
nodes meet; `prepare` does only the last, for a run folder that is there, and `meet` for a run that
is led from elsewhere, in a job that is not its own (`lead`). `next` says what comes after srun.
A run that lost a worker or a node is made ready to start once more, if it may: then `next` prints
"again" and further options for srun. Else it prints nothing, says why the run failed, and ends with
the exit code that the job should have; a job that ran out of time or lost a node is requeued.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from configs import cli, plugins
from configs.plugins import REPOSITORY
from configs.run_folder import claim, claim_new
from configs.settings.launch import LaunchConfig, Slots
from configs.settings.train import TrainConfig
from launch.agent.processes import process_tree
from launch.programs.command_line import OF_SBATCH, CommandLine
from launch.programs.own_program import program_of
from launch.programs.project_snapshot import new_files
from launch.programs.run_spec import run_spec
from launch.programs.user_program import UserProgram
from launch.runs import continuation, restart, run_record
from launch.runs.failure import explain
from launch.runs.restart import Outcome
from launch.slurm import job_files, job_restart, node_health
from launch.slurm.allocation import Allocation
from launch.slurm.inside.meeting import decide_on
from launch.slurm.queue.job_state import UNKNOWN, act_on, job_state, patiently
from launch.spec import size_of
from launch.starters.base import starter_of
from muster.errors import NO_RETRY, STOPPED, MusterError, UsageError, refuse

DEFAULT_REQUEUES = "3"
USAGE = (
    "usage: python -m launch.slurm.batch begin {torchrun,manual,accelerate} [flags]"
    " | prepare RUN_DIR | next RUN_DIR CODE | meet RUN_DIR"
    " | lead RUN_DIR SRUN_OPTIONS..."
)


def main() -> int:
    match sys.argv[1:]:
        case ["begin", workers, *flags] if workers in plugins.names("launch.starters"):
            with redirect_stdout(sys.stderr):  # as of --help: what is printed below is a folder
                run_dir = begin(workers, flags)
            print(run_dir)
            return 0
        case ["prepare", run_dir]:
            go_on(Path(run_dir))
            return 0
        case ["meet", run_dir]:
            job_files.decide_coordinator(Path(run_dir))
            return 0
        case ["lead", *arguments]:
            process_tree.die_with_parent(signal.SIGTERM)  # which job.sh passes on to its step
            become_job(sys.executable, arguments)
        case ["next", run_dir, code] if code.isdigit():
            options = _restart(Path(run_dir), int(code))
            if options is None:
                return end(Path(run_dir), int(code))
            print("again", *options)
            return 0
    raise UsageError(USAGE)


def begin(workers: str, flags: Sequence[str]) -> Path:
    """The folder of a new run with these settings.

    Raises:
        UsageError: wrong flags; every problem at once.
        MusterError: this node has no address at which others reach it.
    """
    line = CommandLine.of(flags, prog="sbatch slurm/*.sh")
    launch, train, bench = line.launch, line.train, line.bench
    program = line.program(Path(os.environ.get("SLURM_SUBMIT_DIR", "")))
    user = program if isinstance(program, UserProgram) else None
    if user is not None:
        user.check(sys.executable)
        train = user.run
    allocation = Allocation.from_env(os.environ)
    _refuse_what_slurm_decides(line, workers, allocation)
    tasks = int(os.environ.get("SLURM_NTASKS", allocation.num_nodes))
    counts = launch.nproc("gpu" if allocation.gpus_on_node else 1, allocation.num_nodes)
    _note_few_cores(counts, allocation)
    per_node = starter_of(workers).one_per_node
    if user is None and "gpu" not in counts:
        refuse(train.world_problems(sum(map(int, counts)) if per_node else tasks))
    size = size_of(counts) if per_node else f"{tasks}w"
    suffix = f"job{allocation.name}"
    suffix += f"-attempt{allocation.attempt}" if allocation.attempt else ""
    what = launch.measures if user is None else user.name
    train = _named(train, f"{size}-{suffix}", what, allocation.attempt)
    earlier = job_restart.of_job(train.logs_root, allocation.name, allocation.cluster)
    first = None
    if allocation.attempt and earlier is not None:  # a requeued job goes on from there
        last, run_ids = earlier
        first = train.logs_root / run_ids[0]
        train = replace(train, checkpoint_dir=train.checkpoint_dir or last)
        if user is None:
            train = continuation.continued(train, train.checkpoint_dir or last, run_ids)
    on_nodes = replace(train, redirect=True, overwrite=False)
    if user is None:
        spec = run_spec(program_of(launch, on_nodes, bench), train, launch)
    else:
        spec = user.run_spec(train, make=True, snapshot=True, earlier=first)
    spec = replace(
        spec,
        workers=workers,
        requeued=allocation.attempt,
        least_nodes=launch.least_nodes if launch.nodes else allocation.num_nodes,
    )
    job = {"nproc": counts, "network": launch.network, "master_port": launch.master_port}
    job_files.write_spec(spec, job)
    job_files.decide_coordinator(spec.run_dir)
    settings = cli.to_yaml(train, launch, bench)
    if user is not None:
        settings = user.settings(launch, run=train)
    run_record.write_down(spec, [], "slurm", settings)
    run_record.begin(
        spec, "slurm", allocation.name, cluster=allocation.cluster, attempt=allocation.attempt
    )
    return spec.run_dir


def become_job(python: str, arguments: Sequence[str]) -> NoReturn:
    """What submitit runs on the job's first node: this process becomes slurm/job.sh.

    submitit itself would turn every failure into exit code 1.
    """
    os.environ["MUSTER_PYTHON"] = python
    script = str(REPOSITORY / "slurm" / "job.sh")
    os.execvp("bash", ["bash", script, *arguments])


def go_on(run_dir: Path) -> None:
    """Decide where the nodes meet; a requeued job puts aside what its attempts left."""
    allocation = Allocation.from_env(os.environ)
    spec, job = job_files.read_spec(run_dir)
    if job.get("step"):
        decide_on(allocation.nodelist.split(",")[0], run_dir)
        return
    # whoever submitted the job may have been killed before it knew the number
    run_record.begin(spec, "slurm", allocation.name, cluster=allocation.cluster)
    if allocation.attempt:
        spec = restart.next_attempt(spec)
        job_files.write_spec(spec, job)
    job_files.decide_coordinator(run_dir)


def _restart(run_dir: Path, code: int) -> list[str] | None:
    """srun's further options for another attempt; None: there is none."""
    if code == 0:
        return None
    try:
        return job_restart.again(run_dir, code)
    except (MusterError, OSError, subprocess.SubprocessError) as error:
        print(f"error: the run is not started again: {error}", file=sys.stderr)
        return None


def end(run_dir: Path, code: int) -> int:
    """Say why the run failed, where it did; the exit code that the job should have."""
    spec, job = job_files.read_spec(run_dir)
    is_own = not job.get("step")  # else it goes on after this run, and is not for us to requeue
    for line in new_files(run_dir) if is_own else ():
        print(line, file=sys.stderr)
    given_up = run_record.read_end(run_dir)
    if given_up is not None and given_up["code"] == NO_RETRY:
        return NO_RETRY
    failure = explain(run_dir, None, code)
    if failure is None:
        run_record.end(spec, 0, "")
        return 0
    # srun's own code may be that of tasks which it ended because another had failed
    run_record.end(spec, failure.code, failure.text, failure.rank)
    lines = (f"run folder: {run_dir}", *failure.context, failure.text)
    print("\n".join(lines), file=sys.stderr)
    if not is_own:
        return failure.code
    if failure.code == STOPPED and continuation.stopped_for_notice(run_dir):
        _requeue("out of time")
    elif Outcome(failure.code).is_worth_another:
        answer = node_health.answers(Allocation.from_env(os.environ), os.environ)
        gone = [name for name, is_here in answer.items() if not is_here]
        if gone:
            _requeue(f"no answer from {', '.join(gone)}")
    return failure.code


def _requeue(why: str) -> None:
    """Have Slurm start this job again, unless it has done so often enough, or it is cancelled."""
    allocation = Allocation.from_env(os.environ)
    if job_state(allocation.name, os.environ).name not in ("RUNNING", UNKNOWN):
        return
    most = int(os.environ.get("MUSTER_MAX_REQUEUES", DEFAULT_REQUEUES))
    if allocation.attempt >= most:
        print(
            f"error: {why} after {allocation.attempt} requeues; MUSTER_MAX_REQUEUES allows "
            f"{most}; submit it again with --resume, or ask for more with --time",
            file=sys.stderr,
        )
        return
    print(
        f"{why}: requeueing job {allocation.name}, to go on from the last checkpoint",
        file=sys.stderr,
        flush=True,
    )
    requeue = ["scontrol", "requeue"]
    try:
        patiently(lambda: act_on(allocation.name, requeue, os.environ), _warn)
    except MusterError as error:
        print(f"error: the job is not requeued: {error}", file=sys.stderr)


def _warn(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _note_few_cores(counts: Sequence[Slots], allocation: Allocation) -> None:
    """Say so where the workers of a node share fewer cores than they are."""
    workers = allocation.gpus_on_node if counts[0] == "gpu" else int(counts[0])
    cores = allocation.cpus_on_node
    if cores is not None and cores < workers:
        _warn(
            f"note: {cores} {'core' if cores == 1 else 'cores'} for the {workers} workers of a "
            "node; ask for more with --cpus-per-task, or with GPUs --cpus-per-gpu"
        )


def _named(train: TrainConfig, size: str, what: str, attempt: int) -> TrainConfig:
    """The settings with the run's id, whose folder is made; a requeued job has a new one."""
    if train.run_id is None:
        return replace(train, run_id=claim_new(train, size, what))
    if attempt:
        train = replace(train, run_id=f"{train.run_id}-attempt{attempt}")
    claim(train.logs_root / str(train.run_id), train)
    return train


def _refuse_what_slurm_decides(line: CommandLine, workers: str, allocation: Allocation) -> None:
    launch = line.launch
    others = OF_SBATCH - ({"launcher"} if launch.launcher == "slurm" else set())
    why = (
        "is not for a script that is in its job already; options of sbatch stand before the script"
    )
    problems = list(line.without_use(others, why))
    is_given = any(one.name == "workers" and not one.where for one in line.given)
    if launch.workers != workers and (is_given or launch.workers != LaunchConfig.workers):
        problems.append(
            f"--workers {launch.workers}, but this script is for {workers}; use "
            "slurm/multinode.sh for torchrun, multinode_manual.sh for manual, accelerate.sh for "
            "accelerate"
        )
    if allocation.components > 1:
        problems.append(
            f"the job has {allocation.components} components, but a run has the nodes of the first "
            "alone: the others would be idle; submit one job of all nodes, without ':' or "
            "#SBATCH hetjob"
        )
    wanted = len(launch.nproc(nodes=launch.nodes or allocation.num_nodes))
    if wanted != allocation.num_nodes:
        problems.append(
            f"--nodes {wanted}, but the job has {allocation.num_nodes}; give it to sbatch, "
            "before the script: sbatch --nodes 4 slurm/multinode.sh"
        )
    refuse(problems)


if __name__ == "__main__":
    cli.run(main)
