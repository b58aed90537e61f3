"""The connection to a login node may be lost, and Ctrl-C given: the run is what it is there."""

import json
import os
import signal
import subprocess
import time
from collections import deque
from pathlib import Path
from threading import Thread

import psutil

from tests.launch.submit import wait_until

WAIT = """import sys, time
from pathlib import Path
print("begun", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("over", flush=True)
print("a warning", file=sys.stderr, flush=True)
"""


LOCAL = ("--launcher", "local", "--workers", "manual")


def output_until(process: subprocess.Popen, words: str) -> str:
    seen = ""
    while words not in seen:
        line = process.stdout.readline()
        assert line, seen + process.stderr.read()
        seen += line
    return seen


def waiting_run(laptop, *flags: str) -> tuple[subprocess.Popen, Path]:
    """One whose program has begun, and goes on until the returned file is there."""
    (laptop.project / "t.py").write_text(WAIT)
    end = laptop.remote.with_name(f"end-{laptop.number}")
    words = ["--run-id", laptop.run_id, *LOCAL, *flags, "--", "t.py", str(end)]
    run = laptop.start("run", *words)
    output_until(run, "begun")
    return run, end


def shown(laptop) -> int:
    """How much the command on the login node has printed, which is less than a line's buffer."""
    return (laptop.session() / "out").stat().st_size


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_lost_connection_changes_nothing(laptop):
    run, end = waiting_run(laptop)
    words = ("follow", str(laptop.session()))
    follower = next(one for one in psutil.process_iter() if words == tuple(cmdline(one)[2:4]))
    sshd = next(one for one in follower.parents() if one.name().startswith("sshd"))
    sshd.kill()
    end.touch()
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert out.endswith("over\n") and out.count("over") == 1
    assert "a warning" in err and "it goes on there" in err


def test_a_link_that_is_down_changes_nothing(laptop):
    run, end = waiting_run(laptop)
    errors, seen = deque(), Thread(target=lambda: errors.extend(run.stderr), daemon=True)
    seen.start()
    laptop.link("down")
    end.touch()
    if "WHOLE_MATRIX" in os.environ:
        time.sleep(60)
    assert wait_until(lambda: any("it goes on there" in line for line in errors))
    laptop.link("up")
    assert run.stdout.read().endswith("over\n")
    assert run.wait(300) == 0, errors


def test_a_laptop_that_is_killed_goes_on_where_it_was(laptop):
    run, end = waiting_run(laptop)
    noted = laptop.home / "state" / "muster" / "logins" / laptop.run_id
    wait_until(lambda: json.loads(noted.read_text())["seen"][0] >= shown(laptop))
    run.kill()
    run.wait()
    follow = laptop.start_known("jobs", "logs", laptop.run_id, "-f")
    end.touch()
    out, err = follow.communicate(timeout=300)
    assert follow.returncode == 0, err
    assert out == "over\n"


def test_ctrl_c_does_what_it_does_there(laptop):
    run, _ = waiting_run(laptop, "--stop-grace-s", "0")
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=300)
    assert run.returncode == 130, err
    assert "Ctrl-C was passed on" in err and "stopped by SIGINT" in err
    assert f"{laptop.run_id}: stopped" in laptop.known("jobs", "status", laptop.run_id).stdout
