"""A submitted job, and how the command that submitted it follows it."""

import sys
import time
from dataclasses import dataclass

from launch.deadlines import JOB_WATCHED_EVERY_S
from launch.runs import run_record, run_state
from launch.runs.log_tail import Follower
from launch.runs.run_state import LeaderWatcher, State, Watchers
from launch.spec import LaunchSpec
from muster.printable import on_one_line


@dataclass(frozen=True)
class Submission:
    """A job that a scheduler has accepted.

    A leader inside the job leads the run, and it alone records how the run ends. The process that
    has submitted the job may follow it.
    """

    job_id: str
    cluster: str | None  # in which the job has its number
    watcher: LeaderWatcher  # it knows the state of the job

    def follow(self, spec: LaunchSpec) -> State:
        """Print what the job does and its workers' output until it is over; return its last state.

        Raises:
            KeyboardInterrupt: after a line that the job continues without being watched.
        """
        try:
            return self._follow(spec)
        except KeyboardInterrupt:
            cancel = f"muster jobs cancel {spec.run_id}"
            print(f"\njob {self.job_id} goes on; to end it: {cancel}", file=sys.stderr)
            raise

    def _follow(self, spec: LaunchSpec) -> State:
        """While the scheduler does not answer, the job has not ended."""
        follower = Follower(spec.run_dir, prefixes=True)
        watchers = Watchers()
        watchers[(run_record.read_job(spec.run_dir) or {}).get("launcher", "")] = self.watcher
        shown = ""
        was_over = False
        while True:
            state = run_state.of(spec.run_dir, watchers)
            if state.word != shown and not spec.quiet:
                shown = state.word
                print(f"job {self.job_id}: {on_one_line(self._text(state))}", flush=True)
            follower.nodes = run_record.nodes_of_ranks(spec.run_dir)
            follower.poll()
            # the record of the end may be seen here later than what the scheduler says
            if state.over and (was_over or run_record.read_end(spec.run_dir) is not None):
                follower.poll(last=True)
                return state
            was_over = state.over
            time.sleep(JOB_WATCHED_EVERY_S)

    def _text(self, state: State) -> str:
        """The state's word; with a reason if nothing is known of the job."""
        is_known = state.over or state.word not in ("unknown", "elsewhere")
        return state.word + ("" if is_known else state.detail.removeprefix(f"job {self.job_id}"))
