"""An agent heeds whatever it is told from its start on, and lets nothing that has ended pile up."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from launch.nodes.channel import MARK
from launch.spec import NodeCommand
from tests.launch.pretended import assignment
from tests.launch.submit import REPOSITORY, submit

LOCAL = ("--launcher", "local")
ORPHANS = """
import os, subprocess, time
import psutil
for _ in range(20):
    subprocess.run(["sh", "-c", "true &"], check=True)
agent, deadline = psutil.Process(int(os.environ["MUSTER_LAUNCHER"])), time.monotonic() + 300
while True:
    ended = [one.pid for one in agent.children() if one.status() == psutil.STATUS_ZOMBIE]
    if not ended or time.monotonic() > deadline:
        break
    time.sleep(0.1)
print(len(ended), "left")
"""


def test_orphans_that_have_ended_do_not_pile_up(tmp_path):
    (tmp_path / "orphans.py").write_text(ORPHANS)
    code, out, err = submit(*LOCAL, "--", "./orphans.py", cwd=tmp_path, python=sys.executable)
    assert code == 0, err
    assert out.splitlines()[-1] == "0 left"


@pytest.mark.parametrize("is_assigned", [True, False])
def test_what_comes_at_once_with_its_assignment_is_heeded(tmp_path, is_assigned):
    """A user who presses Ctrl-C as the agents start: all of it waits in the pipe."""
    sleeps = NodeCommand("node0", 0, ("sleep", "300", str(tmp_path)), {}, str(tmp_path))
    messages = [{"assignment": replace(assignment(tmp_path), commands=(sleeps,)).to_json()}]
    messages = [
        *(messages if is_assigned else ()),
        {"stop": 128 + signal.SIGINT, "signal": "SIGINT"},
    ]
    reads, writes = os.pipe()
    os.write(writes, b"".join(MARK + json.dumps(one).encode() + b"\n" for one in messages))
    with os.fdopen(writes, "wb"), os.fdopen(reads, "rb") as stdin:  # open until the agent has ended
        agent = subprocess.run(
            [sys.executable, "-m", "launch.agent"],
            cwd=REPOSITORY,
            stdin=stdin,
            capture_output=True,
            timeout=300,
            check=False,
        )
    assert agent.returncode == 128 + signal.SIGINT, agent.stderr.decode()
