"""Submit a batch script through submitit, which writes it, calls sbatch and reads the job's number.

`BatchScript` derives from submitit's executor, and defines the methods that its `PicklingExecutor`
expects of each plug-in. Without them, submitit lacks

    a script that is one command    its own script starts submitit, whose `CommandFunction` passes
                                    on no signals and is not requeued:
                                    https://github.com/facebookincubator/submitit/issues/1732
    an environment for sbatch       `_submit_command` takes none; `clean_env` changes that of this
                                    process, and hides where Slurm is:
                                    https://github.com/facebookincubator/submitit/issues/1814
    the job's number                it takes the first "job N" that is printed, perhaps by a site's
                                    own sbatch

submitit's `map_array` creates a plain `SlurmExecutor`, so an array is one submission here, whose
script has sbatch's option --array.
"""

import os
import re
import signal
from collections.abc import Mapping
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from types import FrameType
from typing import NoReturn

import submitit
from submitit.core.utils import FailedJobError

from launch.deadlines import SLURM_IS_SILENT_S
from launch.nodes.survey import last_line
from muster.command import become
from muster.errors import MusterError
from muster.orderly_stop import NOTICE_SIGNALS

SUBMITTED = re.compile(r"Submitted batch job (\d+)")


class BatchScript(submitit.SlurmExecutor):
    """An executor whose jobs all have this script; nothing reads the pickles that it writes."""

    def __init__(self, folder: Path, text: str, env: Mapping[str, str]) -> None:
        super().__init__(folder)
        self._text = text
        self._env = env  # for sbatch

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        return self._text

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        words = ["env"]
        for name in os.environ.keys() - self._env.keys():
            words += ["-u", name]
        if cluster := self._env.get("SLURM_CLUSTERS"):
            words.append(f"SLURM_CLUSTERS={cluster}")
        return [*words, *super()._make_submission_command(submission_file_path)]

    @staticmethod
    def _get_job_id_from_submission_command(string: str | bytes) -> str:
        return job_number(string if isinstance(string, str) else string.decode(errors="replace"))


def submit(folder: Path, text: str, env: Mapping[str, str]) -> str:
    """Submit this batch script; return the number of its job. submitit's files go to `folder`.

    `env`: the environment for sbatch, from `batch_script.environment`.

    Raises:
        MusterError: Slurm refuses the job, with its own message, or does not answer.
    """
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, SLURM_IS_SILENT_S)
    try:
        with redirect_stderr(StringIO()):  # submitit both prints and raises sbatch's message
            return str(BatchScript(folder, text, env).submit(str, text).job_id)
    except FailedJobError as error:
        if isinstance(error.__cause__, MusterError):
            raise error.__cause__ from None
        raise MusterError(f"Slurm refused the job: {last_line(str(error))}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def job_number(output: str) -> str:
    """The number of the job in sbatch's output; a site's own sbatch may print more around it.

    Raises:
        MusterError: the output has no such number.
    """
    match = SUBMITTED.search(output)
    if match is None:
        last_line = (output.strip().splitlines() or ["no message"])[-1]
        raise MusterError(f"sbatch printed no job number, but: {last_line}\ntip: see squeue")
    return match[1]


def _give_up(number: int, frame: FrameType | None) -> NoReturn:
    """Handle the alarm: submitit then ends sbatch, and raises an error caused by this one."""
    raise MusterError(f"Slurm does not answer: sbatch timed out after {SLURM_IS_SILENT_S:.0f} s")


def lead(run_dir: str) -> NoReturn:
    """Become the leader of the run, in a job that an earlier version of Muster has submitted."""
    for number in NOTICE_SIGNALS:  # instead of submitit's handlers, until the leader has its own
        signal.signal(number, signal.SIG_IGN)
    become("muster/run_module.py", "launch.leading.batch_job", "run", run_dir)
