"""A lost connection to a login node does not change the run there; Ctrl-C is passed on to it."""

import json
import signal
import subprocess
from pathlib import Path
from threading import Thread

import psutil
import pytest

from tests.cluster.laptops import LOCAL, MUSTER
from tests.launch.submit import wait_until

pytestmark = pytest.mark.slow
WAIT = """import sys, time
from pathlib import Path
print("begun", flush=True)
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("over", flush=True)
print("a warning", file=sys.stderr, flush=True)
"""
GOES_ON = "the command continues there"


def waiting_run(laptop, *flags: str) -> tuple[subprocess.Popen, Path]:
    """Start a run; return it once its program has begun, and the file whose creation ends it."""
    (laptop.project / "t.py").write_text(WAIT)
    end = laptop.remote.with_name("end")
    words = ["--run-id", laptop.run_id, *LOCAL, *flags, "--", "t.py", str(end)]
    run = laptop.popen(*MUSTER, "run", *laptop.login, *words)
    seen = ""
    while "begun" not in seen:
        line = run.stdout.readline()
        assert line, seen + run.stderr.read()
        seen += line
    return run, end


def cut(laptop) -> None:
    """End the sshd that serves the command that follows the run."""
    words = ["follow", str(laptop.session())]
    every = psutil.process_iter(["cmdline"])
    follower = next(one for one in every if (one.info["cmdline"] or [])[2:4] == words)
    next(one for one in follower.parents() if one.name().startswith("sshd")).kill()


def test_lost_connections_change_nothing(laptop):
    """One is cut, then the link is down as the run ends; all output arrives, and only once."""
    run, end = waiting_run(laptop)
    errors: list[str] = []
    Thread(target=lambda: errors.extend(run.stderr), daemon=True).start()
    cut(laptop)
    wait_until(lambda: any(GOES_ON in line for line in errors))
    errors.clear()
    laptop.link("down")
    end.touch()
    wait_until(lambda: any(GOES_ON in line for line in errors))
    laptop.link("up")
    out = run.stdout.read()
    assert out.endswith("over\n") and out.count("over") == 1
    assert run.wait(300) == 0, errors
    wait_until(lambda: "a warning\n" in errors, about=lambda: errors)


def test_a_laptop_that_is_killed_goes_on_where_it_was(laptop):
    run, end = waiting_run(laptop)
    noted = laptop.home / "state" / "muster" / "logins" / laptop.run_id
    printed = laptop.session() / "out"  # less than a line's buffer
    wait_until(lambda: json.loads(noted.read_text())["seen"][0] >= printed.stat().st_size)
    run.kill()
    run.wait()
    follow = laptop.popen(*MUSTER, "jobs", "logs", laptop.run_id, "-f")
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
