"""A run of two nodes on this machine, led by a process of its own, with a test's deadlines."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil

from launch.agent.led_run import LedRun
from launch.leading.leader import conclude
from launch.nodes.channel import start_each
from launch.spec import Facts, LaunchSpec, Program
from launch.starters.base import commands_of
from muster.checkout import CHECKOUT
from tests.commands import begin, ended
from tests.launch.pretended import FACTS
from tests.launch.submit import wait_until

HANG_S = 7.0
CHANGED = """
import json, sys
from launch import deadlines
seconds = json.loads(sys.argv[1])
assert seconds.keys() <= vars(deadlines).keys()
vars(deadlines).update(seconds)
"""
AGENT = f"{CHANGED}from launch.agent.agent import main\nsys.exit(main())\n"
LEADER = f"{CHANGED}from tests.launch.led import lead\nlead(*sys.argv[1:])\n"


def lead(seconds: str, folder: str) -> None:
    """Lead the run until `folder/go` exists; a single rank ends when `folder/go_RANK` does."""
    waits = f"until [ -e '{folder}/go' ] || [ -e '{folder}/go_'$RANK ]; do sleep 0.1; done"
    program = Program(("--exec", "sh", "-c", waits), cwd=folder)
    limits = {"hang_after_s": HANG_S, "on_hang": "stop", "join_s": 300.0}
    spec = LaunchSpec("run", Path(folder), program, workers="manual", **limits)
    (node,) = FACTS.nodes
    here = {"python": sys.executable, "repository": str(CHECKOUT), "address": "127.0.0.1"}
    two = tuple(replace(node, name=name, **here) for name in ("node0", "node1"))
    facts = Facts(two, "127.0.0.1")
    argv = (sys.executable, "-c", AGENT, seconds)
    start = partial(start_each, lambda index, node: argv, spec.run_dir)
    job = LedRun(start, commands_of, prefixes=False, is_local=True)
    job.start(spec, facts)
    code = conclude(job, 2, spec)
    job.close()
    sys.exit(code)


@contextmanager
def led(folder: Path, **seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Start the leader, and wait until all workers run; `seconds` replace deadlines by name."""
    argv = (sys.executable, "-c", LEADER, json.dumps(seconds), folder)
    with ended(begin(*argv, cwd=CHECKOUT)) as leader:
        outputs = [folder / "workers" / f"rank_0000{rank}.out" for rank in (0, 1)]
        wait_until(lambda: all(map(Path.exists, outputs)))
        yield leader


def agent(folder: Path, node: int) -> psutil.Process:
    record = json.loads((folder / "agents" / f"node_0000{node}.json").read_text())
    return psutil.Process(record["pid"])


def finished(leader: subprocess.Popen[str], folder: Path) -> str:
    """Let the workers end; return what the leader has printed, which must end well."""
    (folder / "go").touch()
    out, err = leader.communicate(timeout=300)
    assert leader.returncode == 0, out + err
    return out + err
