"""A run that is one step of somebody's job, led from here to its end."""

import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from configs.plugins import REPOSITORY
from launch.runs import run_record
from launch.runs.signals import on_stop
from launch.spec import LaunchSpec
from muster.errors import STOPPED

TICK_S = 0.1


class StepJob:
    """`slurm/job.sh` as a child of this process, in a job that goes on after it."""

    detached = False
    trouble: str | None = None
    shown = b""

    def __init__(
        self,
        job_id: str,
        cluster: str,
        spec: LaunchSpec,
        argv: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        self.job_id, self.cluster = job_id, cluster
        self.signals: list[int] = []
        self._spec = spec
        on_stop(self._note)
        # A group of its own: Ctrl-C is for this process, which has the workers end in order.
        self._process = subprocess.Popen(
            argv, cwd=REPOSITORY, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True
        )

    def wait(self) -> int:
        """0 if the run succeeded; 75 if the workers stopped cleanly, to be continued; 128 + its
        number if a signal ended the run; else the code of the rank that failed first.
        """
        heeded = 0
        while (code := self._process.poll()) is None:
            for number in self.signals[heeded:]:
                self._stop(number, is_first=heeded == 0)
                heeded += 1
            time.sleep(TICK_S)
        ended = run_record.read_end(self._spec.run_dir) or {}
        self.shown = str(ended.get("message", "")).encode()  # job.sh has said it last
        if self.signals and code != STOPPED:
            return 128 + self.signals[0]
        return code if code >= 0 else 128 - code

    def _stop(self, number: int, *, is_first: bool) -> None:
        if is_first:
            if not self._spec.quiet:
                print("stopping; Ctrl-C again ends it at once", file=sys.stderr, flush=True)
            self._process.send_signal(signal.SIGTERM)
        elif number == signal.SIGINT:
            self._process.send_signal(signal.SIGQUIT)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signals.append(number)
