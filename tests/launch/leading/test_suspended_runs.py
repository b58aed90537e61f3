"""A run whose processes are stopped for longer than any of its limits goes on afterwards."""

import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from launch.agent import attempt
from launch.agent.led_run import LedRun
from launch.leading.leader import conclude
from launch.nodes.channel import start_each
from launch.spec import Facts, LaunchSpec, Program
from launch.starters.base import commands_of
from tests.commands import begin, ended
from tests.launch.pretended import FACTS
from tests.launch.submit import REPOSITORY, wait_until

SILENT_S, HANG_S, SUSPENDED_S = 5.0, 7.0, 9.0
AGENT = f"""
import sys
from launch import deadlines
deadlines.LEADER_LOST_WHEN_SILENT_S = {SILENT_S}
from launch.agent.supervisor import main
sys.exit(main())
"""
LEADER = "from tests.launch.leading.test_suspended_runs import *; lead(Path(sys.argv[1]))"


def lead(folder: Path) -> None:
    """The leader of two nodes, with shorter limits, until `folder/go` exists."""
    attempt.AGENT_LOST_WHEN_SILENT_S = SILENT_S
    waits = f"until [ -e '{folder}/go' ]; do sleep 0.1; done"
    program = Program(("--exec", "sh", "-c", waits), cwd=str(folder))
    limits = {"hang_after_s": HANG_S, "on_hang": "stop", "join_s": 300.0}
    spec = LaunchSpec("run", folder, program, workers="manual", **limits)
    (node,) = FACTS.nodes
    here = {"python": sys.executable, "repository": str(REPOSITORY), "address": "127.0.0.1"}
    two = tuple(replace(node, name=name, **here) for name in ("node0", "node1"))
    facts = Facts(two, "127.0.0.1")
    argv = (sys.executable, "-c", AGENT)
    start = partial(start_each, lambda index, node: argv, folder)
    job = LedRun(start, commands_of, prefixes=False, is_local=True)
    job.start(spec, facts)
    sys.exit(conclude(job, 2, spec))


def send(number: int, processes: list[psutil.Process]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # a short one, which has ended
            one.send_signal(number)


def test_a_suspended_run_goes_on_where_it_was(tmp_path):
    """As `scontrol suspend` and `resume` do it: neither all at once, nor in a certain order."""
    with ended(begin(sys.executable, "-c", LEADER, tmp_path, cwd=REPOSITORY)) as leader:
        outputs = [tmp_path / "workers" / f"rank_0000{rank}.out" for rank in (0, 1)]
        assert wait_until(lambda: all(map(Path.exists, outputs)))
        time.sleep(2.5)  # so that agents have reported on their workers
        own = psutil.Process(leader.pid)
        below = own.children(recursive=True)
        own.suspend()
        time.sleep(0.3)
        send(signal.SIGSTOP, below)
        time.sleep(SUSPENDED_S)
        send(signal.SIGCONT, below)
        time.sleep(0.5)
        own.resume()
        time.sleep(2.5)  # for all to look at their clocks
        (tmp_path / "go").touch()
        out, err = leader.communicate(timeout=300)
    assert leader.returncode == 0, out + err
    assert "no progress" not in out + err
