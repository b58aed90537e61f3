"""Runs on a login node: the answers of `muster.Job` there for a program on a laptop.

status|cancel RUN_DIR, or wait RUN_DIR SECONDS. It prints the exit code, or null, and the status.
"""

import json
import sys
from contextlib import suppress
from dataclasses import asdict

from muster import errors
from muster.remote_job import Job


def main() -> int:
    verb, run_dir, *seconds = sys.argv[1:]
    job, code = Job(run_dir), None
    if verb == "wait":
        with suppress(TimeoutError):
            code = job.wait(float(seconds[0]))
    elif verb == "cancel":
        job.cancel()
    print(json.dumps({"code": code, **asdict(job.status())}))
    return 0


if __name__ == "__main__":
    errors.run(main)
