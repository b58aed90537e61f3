"""A job in Slurm's hands, as the command that submitted it sees it."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from launch.runs import run_record
from launch.runs.log_tail import Follower
from launch.slurm.queue.job_state import FORGOTTEN, UNKNOWN, JobState, Watcher
from launch.spec import LaunchSpec
from muster.orderly_stop import NOTICE_SIGNALS

POLL_S = 1.0


def become(argv: Sequence[str]) -> NoReturn:
    """What submitit runs on the job's first node: this process becomes the run's leader.

    submitit itself would answer a notice, and turn every failure into exit code 1.
    """
    for number in NOTICE_SIGNALS:  # until the leader hears them
        signal.signal(number, signal.SIG_IGN)
    os.execvp(argv[0], list(argv))


class SlurmJob:
    """A job in Slurm's hands."""

    attempt = None  # of the job all attempts are one run
    shown = b""
    trouble: str | None = None
    signals: Sequence[int] = ()

    def __init__(
        self, job_id: str, cluster: str, spec: LaunchSpec, watcher: Watcher, *, wait: bool
    ) -> None:
        self.job_id = job_id
        self.cluster = cluster
        self.detached = not wait
        self._spec = spec
        self._watcher = watcher
        self._follower = Follower(spec.run_dir, prefixes=True)

    def wait(self) -> int:
        """0 if the job succeeded, else its exit code; what workers print is shown meanwhile.

        Raises:
            KeyboardInterrupt: after saying that the job goes on without being watched.
        """
        try:
            state = self._watch()
        except KeyboardInterrupt:
            cancel = f"python launch/jobs.py cancel {self._spec.run_id}"
            print(f"\njob {self.job_id} goes on; to end it: {cancel}", file=sys.stderr)
            raise
        ended = run_record.read_end(self._spec.run_dir)
        if ended is None and state.name == FORGOTTEN:
            self.trouble = f"Slurm has forgotten job {self.job_id}, and nothing says how it ended"
            return 1
        if ended is None:
            self.trouble = f"Slurm says {state.name} of job {self.job_id}"
            return 0 if state.name == "COMPLETED" else 1
        return int(ended["code"])

    def _watch(self) -> JobState:
        """The state in which the job ended; while Slurm does not answer, it has not."""
        shown = ""
        while True:
            state = self._watcher.state(self.job_id, run_record.signs(self._spec.run_dir))
            if state.name != shown and not self._spec.quiet:
                more = f"; {state.reason}" if state.name == UNKNOWN else ""
                print(f"job {self.job_id}: {state.name.lower()}{more}", flush=True)
                shown = state.name
            self._follower.nodes = run_record.nodes_of_ranks(self._spec.run_dir)
            self._follower.poll()
            if state.is_over:
                self._follower.poll(last=True)
                return state
            time.sleep(POLL_S)
