"""Submit the leaders of runs through submitit: one batch job, or the parts of one job array.

    python muster/run_module.py launch.slurm.submitit_jobs < REQUEST

REQUEST is an object in JSON: `folder` for submitit's files, `python` for the jobs, sbatch's
`options`, `at_once` (how many parts of an array may run at a time), and `runs`, their folders. The
last line of the output is an object, too: `job_ids` are the numbers of the jobs, or `refusal` is
what sbatch says.

This is a process of its own, since submitit starts sbatch with the environment of the process that
calls submitit, and has no setting for another one. `submitit.helpers.clean_env` changes the
environment of the whole process, which may be a user's program, and it hides where Slurm is:
https://github.com/facebookincubator/submitit/issues/1814
"""

import json
import re
import shlex
import signal
import sys
from importlib import import_module
from types import FrameType
from typing import NoReturn

from launch.deadlines import SLURM_IS_SILENT_S
from muster.command import become
from muster.errors import MusterError, run
from muster.orderly_stop import NOTICE_SIGNALS

# In each script: Slurm's signal to the batch shell must not end it before the leader gets it.
NOTICES_IGNORED = "trap '' USR1 USR2"
SUBMITTED = re.compile(r"Submitted batch job (\d+)")


def lead(run_dir: str) -> NoReturn:
    """Become the leader of the run; submitit calls this on the job's first node.

    submitit's own way for commands, `CommandFunction`, does not pass on Slurm's signals, and its
    jobs are not requeued: https://github.com/facebookincubator/submitit/issues/1732
    submitit's own way for functions, `checkpoint`, requeues as soon as the signal comes, before the
    workers have saved; and each failure becomes exit code 1.
    """
    for number in NOTICE_SIGNALS:  # instead of submitit's handlers, until the leader has its own
        signal.signal(number, signal.SIG_IGN)
    become("muster/run_module.py", "launch.leading.batch_job", "run", run_dir)


def main() -> int:
    request = json.load(sys.stdin)
    import submitit
    from submitit.core.utils import FailedJobError

    # submitit reads the first "job N" in sbatch's output, where a site's own sbatch may print
    # another one before. A subclass would not help: `map_array` makes a plain SlurmExecutor itself.
    hook = "_get_job_id_from_submission_command"  # which plugins of submitit define, too
    setattr(submitit.SlurmExecutor, hook, staticmethod(job_number))
    # exec: the leader must receive Slurm's signals to the batch shell
    python = f"exec {shlex.quote(request['python'])}"
    executor = submitit.SlurmExecutor(request["folder"], python=python)
    executor.update_parameters(
        # a step of submitit would hold the nodes, but the leader starts agents by steps of its own
        use_srun=False,  # https://github.com/facebookincubator/submitit/pull/1745
        stderr_to_stdout=True,
        setup=[NOTICES_IGNORED],
        array_parallelism=request["at_once"],
        wckey=None,  # otherwise it is `submitit`, which sites that check wckeys refuse
        additional_parameters=request["options"],
    )
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, SLURM_IS_SILENT_S)
    try:
        # for a single run this makes a plain job
        jobs = executor.map_array(lead, request["runs"])
    except FailedJobError as error:
        if isinstance(error.__cause__, MusterError):
            raise error.__cause__ from None
        print(json.dumps({"refusal": str(error)}))
        return 0
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(json.dumps({"job_ids": [job.job_id for job in jobs]}))
    return 0


def job_number(output: str) -> str:
    """The number of the job in sbatch's output; a site's own sbatch may print more around it.

    Raises:
        MusterError: the output has no such number.
    """
    match = SUBMITTED.search(output)
    if match is None:
        last_line = (output.strip().splitlines() or ["no message"])[-1]
        raise MusterError(f"sbatch printed no job's number, but: {last_line}; see squeue")
    return match[1]


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    """Handle the alarm: submitit then ends sbatch, and raises an error that this one has caused."""
    raise MusterError(f"Slurm does not answer: sbatch waited {SLURM_IS_SILENT_S:.0f} s")


if __name__ == "__main__":
    # imported by its name, so that jobs import `lead` by it: a function of __main__ would be
    # pickled as its bytes
    run(import_module("launch.slurm.submitit_jobs").main)
