"""A job in Slurm's hands, as the command that submitted it sees it, and as often as it may ask.

How often Slurm is asked (`Watcher`): callers may look as often as they like. One question is about
all jobs. After a change of state, or of the job's own files, the next question comes after 1 s;
each time that nothing has changed the pause doubles, up to 10 s. With several jobs it is 5 s. A
controller that did not answer is left alone for 10 s, and until then the state is UNKNOWN, which
is never taken for the end of a job. FORGOTTEN means that it answered, and has no such job: jobs
leave its memory some minutes after their end (MinJobAge).
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NoReturn

from launch.runs import run_record
from launch.runs.log_tail import Follower
from launch.slurm import controller
from launch.slurm.controller import FORGOTTEN, UNKNOWN, JobState, Silent, job_states
from launch.spec import LaunchSpec
from muster.errors import MusterError
from muster.orderly_stop import NOTICE_SIGNALS

POLL_S = 1.0
# Sites limit how often one may ask: once a second while a state changes, else ever more rarely.
FIRST_S, LAST_S = 1.0, 10.0
ALL_S = 5.0  # between two questions about many jobs


def become(argv: Sequence[str]) -> NoReturn:
    """What submitit runs on the job's first node: this process becomes the run's leader.

    submitit itself would answer a notice, and turn every failure into exit code 1.
    """
    for number in NOTICE_SIGNALS:  # until the leader hears them
        signal.signal(number, signal.SIG_IGN)
    os.execvp(argv[0], list(argv))


class Watcher:
    """Looks at jobs, as often as one likes; Slurm is asked no more often than it should be."""

    def __init__(self, env: Mapping[str, str], clock: Callable[[], float] = time.monotonic) -> None:
        self._env = env
        self._clock = clock
        self._cluster: str | None = None
        self._states: dict[str, JobState] = {}
        self._signs: dict[str, object] = {}
        self._asked_s, self._pause_s = float("-inf"), FIRST_S  # until the next question
        self._silence, self._silent_until_s = JobState(UNKNOWN), float("-inf")

    def cluster(self) -> str:
        """The name of the cluster that is asked.

        Raises:
            Silent: it does not answer.
            MusterError: there is no Slurm here.
        """
        if self._cluster is None:
            if self._clock() < self._silent_until_s:
                raise Silent(self._silence.reason)
            try:
                self._cluster = controller.name(self._env)
            except Silent as error:
                self._note_silence(JobState(UNKNOWN, str(error)))
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Have the states of all these jobs, by one question; of several at most 5 s old."""
        known, now = self._states, self._clock()
        wanted = [one for one in job_ids if one not in known or not known[one].is_over]
        is_new = not known.keys() >= {*wanted}
        is_due = now - self._asked_s >= (self._pause_s if len(wanted) == 1 else ALL_S)
        if not wanted or not (is_new or is_due) or now < self._silent_until_s:
            return
        try:
            found = job_states(wanted, self._env)
        except MusterError as error:
            self._note_silence(JobState(UNKNOWN, str(error)))
            found = dict.fromkeys(wanted, self._silence)
        is_same = all(one in known and known[one].name == found[one].name for one in wanted)
        self._pause_s = min(2 * self._pause_s, LAST_S) if is_same else FIRST_S
        self._asked_s = now
        known.update(found)

    def state(self, job_id: str, sign: object = None) -> JobState:
        """A job's state, at most 10 s old; 1 s where one has just changed.

        `sign` is what else one sees of the job, such as its files: the state may change with it.
        """
        if sign != self._signs.get(job_id):
            self._signs[job_id], self._pause_s = sign, FIRST_S
        self.look_at({**self._states, job_id: None})
        return self._states.get(job_id, self._silence)  # it answers nobody, whichever it is

    def _note_silence(self, state: JobState) -> None:
        self._silence, self._silent_until_s = state, self._clock() + LAST_S


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
            self.trouble = f"Slurm forgot job {self.job_id}, and no record says how it ended"
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
