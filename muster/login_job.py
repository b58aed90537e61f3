"""A run behind a login node, from Python: `muster.Job` there is asked, and results come here.

On the login node this answers: `status|cancel RUN_DIR`, or `wait RUN_DIR SECONDS`, prints the exit
code, or null, and the status.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muster import errors
from muster.command import LOGIN
from muster.remote_job import MUSTER, Job, Status, run_command
from muster.run_files import project_of

ASK = ("muster/run_module.py", "launch.ssh.login_node", "job")


class LoginJob(Job):
    """`run_dir` is a local folder with the function's results; `remote_dir` is the run's folder."""

    def __init__(self, remote_dir: str, known: Mapping[str, Any]) -> None:
        super().__init__(project_of(Path.cwd()) / "logs" / Path(remote_dir).name)
        self.remote_dir = remote_dir
        self._login = [
            f"--{name.replace('_', '-')}={known[name]}" for name in LOGIN if known[name] is not None
        ]

    def status(self) -> Status:
        """What the run is doing now."""
        answer = self._answer("status")
        return Status(answer["word"], answer["is_over"], answer["detail"], tuple(answer["notes"]))

    def wait(self, timeout_s: float | None = None) -> int:
        """As for any job; the function's results are then here."""
        code = super().wait(timeout_s)
        into = ("--results", "--to", str(self.run_dir.parent))
        run_command(MUSTER, "jobs", *self._login, "fetch", self.run_id, *into)
        return code

    def _wait_some(self, seconds: float) -> int | None:
        """Wait there."""
        code: int | None = self._answer("wait", str(seconds))["code"]
        return code

    def cancel(self) -> None:
        """End the run and everything it started; return when that is done."""
        self._answer("cancel")

    def _answer(self, verb: str, *words: str) -> dict[str, Any]:
        printed = run_command(*ASK, *self._login, verb, self.remote_dir, *words)
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return answer

    def _words(self, verb: str) -> list[str]:
        return [*self._login, "--logs-dir", str(Path(self.remote_dir).parent), verb, self.run_id]


def main() -> int:
    verb, run_dir, *seconds = sys.argv[1:]
    job, code = Job(run_dir), None
    if verb == "wait":
        code = job._wait_some(float(seconds[0]))
    elif verb == "cancel":
        job.cancel()
    print(json.dumps({"code": code, **asdict(job.status())}))
    return 0


if __name__ == "__main__":
    errors.run(main)
