"""A submitted job, as the command that submitted it sees it; limits how often Slurm is asked.

How often Slurm is asked (`Watcher`): callers may look as often as they like. One question is about
all jobs, and the next one comes 5 s later, or 1 s after a change of a job's own files. A controller
that did not answer is not asked for 10 s. Until then the state is UNKNOWN, which never counts as
the end of a job. FORGOTTEN means that it answered, and has no such job: it forgets jobs some
minutes after their end (MinJobAge).
"""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from launch.deadlines import (
    JOB_ASKED_AFTER_CHANGE_S,
    JOB_ASKED_AFTER_SILENCE_S,
    JOB_ASKED_EVERY_S,
    JOB_WATCHED_EVERY_S,
    SLURM_ANSWERS_S,
)
from launch.ends import End, Kind
from launch.runs import run_record
from launch.runs.log_tail import Follower
from launch.slurm import controller
from launch.slurm.controller import FORGOTTEN, UNKNOWN, JobState, Silent, forgotten, job_states
from launch.spec import Facts, LaunchSpec, NodeFacts
from muster.errors import MusterError


class Watcher:
    """Looks at jobs at any time, but asks Slurm only as often as allowed.

    `patience_s`: who waits for a job has more than who wants to see it now.
    """

    def __init__(self, env: Mapping[str, str], patience_s: float = SLURM_ANSWERS_S) -> None:
        self._env = env
        self._patience_s = patience_s
        self._cluster: str | None = None
        self._states: dict[str, JobState] = {}
        self._signs: dict[str, object] = {}
        self._next_s = float("-inf")  # when Slurm may be asked again about known jobs
        self._silence, self._silent_until_s = JobState(UNKNOWN), float("-inf")

    def cluster(self) -> str:
        """The name of the cluster that is asked.

        Raises:
            Silent: it does not answer.
            MusterError: there is no Slurm here.
        """
        if self._cluster is None:
            if time.monotonic() < self._silent_until_s:
                raise Silent(self._silence.reason)
            try:
                self._cluster = controller.name(self._env, self._patience_s)
            except Silent as error:
                self._note(error)
                raise
        return self._cluster

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Get the states of all these jobs with one question; they are at most 5 s old."""
        known = self._states
        now = time.monotonic()
        wanted = [one for one in job_ids if one not in known or not known[one].is_over]
        is_due = now >= self._next_s or not known.keys() >= {*wanted}
        if not wanted or not is_due or now < self._silent_until_s:
            return
        try:
            known.update(job_states(wanted, self._env, self._patience_s))
        except MusterError as error:
            self._note(error)
            known.update(dict.fromkeys(wanted, self._silence))
        self._next_s = now + JOB_ASKED_EVERY_S

    def state(self, job_id: str, sign: object = None) -> JobState:
        """A job's state, at most 5 s old.

        `sign` is anything else that shows a change of the job, such as its files: if it has
        changed, the state is at most 1 s old.
        """
        if sign != self._signs.get(job_id):
            self._signs[job_id] = sign
            self._next_s = min(self._next_s, time.monotonic() + JOB_ASKED_AFTER_CHANGE_S)
        self.look_at({**self._states, job_id: None})
        return self._states.get(job_id, self._silence)  # no answer about any job

    def _note(self, error: MusterError) -> None:
        self._silence = JobState(UNKNOWN, str(error))
        self._silent_until_s = time.monotonic() + JOB_ASKED_AFTER_SILENCE_S


class SlurmJob:
    """A job that was submitted to Slurm."""

    is_led_here = False  # but in the job
    shown = b""
    cause: End | None = None  # what Slurm says of it, where its leader has recorded nothing
    noticed_unix_s: float | None = None
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
        """Return 0 if the job succeeded, else its exit code; print the workers' output meanwhile.

        Raises:
            KeyboardInterrupt: after a line that the job continues without being watched.
        """
        try:
            state = self._watch()
        except KeyboardInterrupt:
            cancel = f"muster jobs cancel {self._spec.run_id}"
            print(f"\njob {self.job_id} goes on; to end it: {cancel}", file=sys.stderr)
            raise
        ended = run_record.read_end(self._spec.run_dir)
        if ended is not None:
            return int(ended["code"])
        says = f"Slurm says {state.name} of job {self.job_id}"
        message = forgotten(self.job_id) if state.name == FORGOTTEN else says
        self.cause = End(Kind.JOB, "", time.time(), message=message)
        return 0 if state.name == "COMPLETED" else 1

    def lives(self, node: NodeFacts) -> bool:
        """See `Job`: the leader in the job knows."""
        return False

    def start(self, spec: LaunchSpec, facts: Facts) -> None:
        """See `Job`: the leader in the job does it."""
        raise NotImplementedError

    def close(self) -> None:
        """See `Job`: the leader in the job does it."""

    def _watch(self) -> JobState:
        """The state in which the job ended; while Slurm does not answer, it has not ended."""
        shown = ""
        while True:
            state = self._watcher.state(self.job_id, run_record.change_stamp(self._spec.run_dir))
            if state.name != shown and not self._spec.quiet:
                more = f"; {state.reason}" if state.name == UNKNOWN else ""
                print(f"job {self.job_id}: {state.name.lower()}{more}", flush=True)
                shown = state.name
            self._follower.nodes = run_record.nodes_of_ranks(self._spec.run_dir)
            self._follower.poll()
            if state.is_over:
                self._follower.poll(last=True)
                return state
            time.sleep(JOB_WATCHED_EVERY_S)
