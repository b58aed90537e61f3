"""`jobs.py top` has a line for each run, those that go on first, until Ctrl-C."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from launch.runs.run_state import State
from launch.runs.watching.overview import ENDED_SHOWN, shown
from tests.launch.submit import wait_until
from tests.launch.test_jobs import JOBS, jobs, leader, run_folder


def test_runs_that_go_on_come_first_and_few_that_are_over():
    runs = [Path(str(index)) for index in range(12)]
    states = [
        State("running" if index in (3, 9) else "done", index not in (3, 9)) for index in range(12)
    ]
    found = [int(run.name) for run, _ in shown(runs, states)]
    assert found == [3, 9, 0, 1, 2, 4, 5] and len(found) == 2 + ENDED_SHOWN


def test_into_a_pipe_it_is_shown_once(tmp_path):
    run_folder(tmp_path, "20260101-one", leader(job_id="77"), {"code": 1, "message": "boom"})
    run_folder(tmp_path, "20260102-two", leader(job_id="78"))
    for more in ((), ("--once",)):
        code, out, err = jobs(tmp_path, "top", *more)
        assert code == 0 and err == ""
        head, first, second = out.splitlines()
        assert head.split() == ["run", "through", "job", "state", "what", "it", "does"]
        assert first.split()[:4] == ["20260102-two", "local", "78", "running"]
        assert "none of them has started workers yet" in first
        assert second.split()[:4] == ["20260101-one", "local", "77", "failed"]
    assert len(jobs(tmp_path, "top", "-n", "1")[1].splitlines()) == 2


def test_on_a_terminal_it_is_refreshed_until_ctrl_c(tmp_path):
    run_folder(tmp_path, "20260101-one", leader(job_id="77"))
    terminal, other = pty.openpty()
    argv = [sys.executable, JOBS, "--logs-dir", str(tmp_path), "top"]
    process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other, close_fds=True)
    os.close(other)
    seen = b""
    try:
        while b"running" not in seen:
            seen += os.read(terminal, 4096)
        run_folder(tmp_path, "20260102-two", leader(job_id="78"), {"code": 0, "message": ""})
        while b"20260102-two" not in seen:
            seen += os.read(terminal, 4096)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert wait_until(lambda: process.poll() is not None)
        assert process.returncode == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
