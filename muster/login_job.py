"""Handle a run behind a login node from Python: ask its `Job` there, and copy its results here.

On the login node this file is run with `status|cancel RUN_DIR` or `wait RUN_DIR SECONDS`. It then
prints the exit code, or null, and the status.
"""

import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from muster import arguments, errors
from muster.command import LOGIN
from muster.errors import MusterError, refuse
from muster.remote_job import MUSTER, Job, run_command
from muster.run_files import project_of
from muster.status import Status
from muster.writing import record_in

ASK = ("muster/run_module.py", "launch.ssh.login_node", "job")
ANSWER = ("code", "word", "is_over", "detail", "notes")
SLICE_S = 60.0  # of one wait: the process on the login node outlives this one by at most this long


class LoginJob(Job):
    """`run_dir` is a local folder with the function's results; `remote_dir` is the run's folder.

    The login node determines only `remote_dir`, never a folder on this machine.
    """

    def __init__(self, run: str, remote_dir: str, login: Mapping[str, Any]) -> None:
        super().__init__(project_of(Path.cwd()) / "logs" / run)
        self.remote_dir = remote_dir
        self._login = [
            f"--{name.replace('_', '-')}={login[name]}" for name in LOGIN if login[name] is not None
        ]

    def status(self) -> Status:
        """What the run is doing now."""
        return _status(self._answer("status"))

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the run is over, copy the function's results here, and return its exit code.

        Raises:
            TimeoutError: it is still running after `timeout_s` seconds.
        """
        if timeout_s is not None:
            refuse(arguments.number("timeout_s", timeout_s, least=0), where="wait: ")
        began = time.monotonic()
        while True:
            passed_s = time.monotonic() - began
            left_s = SLICE_S if timeout_s is None else max(0.0, timeout_s - passed_s)
            answer = self._answer("wait", str(min(SLICE_S, left_s)))
            if answer["code"] is not None:
                break
            if left_s <= SLICE_S and timeout_s is not None:
                state = _status(answer)
                raise TimeoutError(f"{self.run_id} is not done after {timeout_s:g} s: {state}")
        into = ("--results", "--to", str(self.run_dir.parent))
        run_command(MUSTER, "jobs", *self._login, "fetch", self.run_id, *into)
        return int(answer["code"])

    def cancel(self) -> None:
        """End the run and everything it started; return when that is done."""
        self._answer("cancel")

    def _answer(self, verb: str, *words: str) -> dict[str, Any]:
        printed = run_command(*ASK, *self._login, verb, self.remote_dir, *words)
        last = (printed.splitlines() or [""])[-1]
        answer = record_in(last.encode(), *ANSWER)
        if answer is None:
            raise MusterError(
                f"{self.run_id}: the login node sent an unexpected answer: {last[:200]!r}"
            )
        return answer

    def _words(self, verb: str) -> list[str]:
        return [*self._login, "--logs-dir", str(Path(self.remote_dir).parent), verb, self.run_id]


def _status(answer: Mapping[str, Any]) -> Status:
    return Status(answer["word"], answer["is_over"], answer["detail"], tuple(answer["notes"]))


def main() -> int:
    verb, run_dir, *seconds = sys.argv[1:]
    job = Job(run_dir)
    code = None
    if verb == "wait":
        with suppress(TimeoutError):
            code = job.wait(float(seconds[0]))
    elif verb == "cancel":
        job.cancel()
    print(json.dumps({"code": code, **asdict(job.status())}))
    return 0


if __name__ == "__main__":
    errors.run(main)
