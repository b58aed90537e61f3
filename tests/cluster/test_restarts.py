"""A restart is a message to the living agents; a lost agent is started again on its node.

The program is a shell loop: it starts immediately, and its ranks never meet.
"""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress

import psutil
import pytest

from muster import run_files
from tests.cluster import recoveries, ways
from tests.cluster.recoveries import FAULTS, Loop, cut_connection, leave_nothing, link
from tests.cluster.ways import Run, in_held_job, steps_of
from tests.launch.submit import only_run, wait_until
from tests.train.workers import read_json
from tests.written import executable

pytestmark = pytest.mark.slow


@pytest.fixture
def begin(cluster, tmp_path, monkeypatch) -> Iterator:
    """Start runs, and leave nothing of them after the test."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")  # otherwise a job starts again
    begun = []

    def start_run(way, *flags, program=None):
        begun.append(Run(cluster, way, tmp_path / "runs", *flags, program=program or Loop()))
        return begun[-1]

    yield start_run
    for run in begun:
        leave_nothing(run)


def agents(run: Run) -> dict[str, int]:
    """Return the process ID of each node's agent in the current attempt."""
    records = [read_json(path) for path in run_files.AGENT.find(run.run_dir)]
    return {one["node"]: one["pid"] for one in records}


def restarted(run: Run, hit) -> dict[str, int]:
    """Cause a fault; return the agents of the next attempt once it is at work."""
    before = len(run_files.attempt_folders(run.run_dir))
    earlier_files = {path.stat().st_ino for path in run.outputs()}
    hit(run)
    return working(run, before + 1, earlier_files=earlier_files)


def working(
    run: Run, earlier: int, nodes: int = 4, earlier_files: Collection[int] = ()
) -> dict[str, int]:
    """Return the agents of the attempt after `earlier` attempts, once each rank has printed.

    `earlier_files` are the inodes of the files with earlier output: they are moved away one after
    another, and some may still be in their place.
    """

    def works() -> bool:
        if len(run_files.attempt_folders(run.run_dir)) < earlier:
            return False
        try:
            files = [path.stat() for path in run.outputs()]
        except FileNotFoundError:  # it is just being moved away
            return False
        is_new = all(file.st_size and file.st_ino not in earlier_files for file in files)
        return is_new and len(files) == nodes == len(agents(run))

    wait_until(lambda: works() or run.is_over())
    assert not run.is_over(), run.printed()
    return agents(run)


@pytest.mark.parametrize("way", ["ssh", pytest.param("sbatch", marks=pytest.mark.slow)])
def test_restart_replaces_only_the_lost_agent_on_its_node(begin, way):
    run = begin(recoveries.WAYS[way], "--nodes", "4", "--max-restarts", "4")
    first = agents(run)
    assert restarted(run, FAULTS["worker killed"].hit) == first
    second = restarted(run, FAULTS["agent killed"].hit)
    assert second.keys() == first.keys()
    assert {node for node in first if first[node] != second[node]} == {"node2"}
    assert restarted(run, FAULTS["worker killed"].hit) == second
    third = restarted(run, FAULTS["agent told to end"].hit)
    assert {node for node in second if second[node] != third[node]} == {"node2"}
    assert len(run_files.attempt_folders(run.run_dir)) == 4
    if way == "sbatch":
        steps = steps_of(run.cluster, ways.running_job(run.cluster))
        assert steps.count("muster") == 2  # the second has ended with its agent


def test_lost_agent_in_held_job_is_restarted_by_a_step(cluster, held, tmp_path):
    run = Run(cluster, in_held_job, tmp_path / "runs", "--max-restarts", "1", program=Loop())
    first = agents(run)
    second = restarted(run, FAULTS["agent killed"].hit)
    assert {node for node in first if first[node] != second[node]} == {"node2"}
    run.process.terminate()
    run.ends()
    run.end()
    wait_until(lambda: set(steps_of(cluster, held)) <= {"other", "extern"})


# It makes the step run another program first, with the ID of its own process as an argument.
SRUN = """#!/bin/bash
for ((at = 1; at <= $#; at++)); do [[ ${!at} == */python* ]] && break; done
exec REAL "${@:1:at-1}" "${0%/*}/first" $$ "${@:at}"
"""
# The first time that an agent is about to start on node1, this kills the agent, or srun.
FIRST = """#!/bin/bash
if [[ $SLURMD_NODENAME == node1 && $* == *launch.in_job.task* ]]; then
    mkdir "${0%/*}/killed" 2> /dev/null && kill -KILL VICTIM
fi
exec "${@:2}"
"""


@pytest.mark.parametrize("victim", ["agent", "srun"])
def test_node_lost_before_its_assignment_is_started_again(cluster, tmp_path, monkeypatch, victim):
    real = shutil.which("srun")
    assert real is not None
    tools = tmp_path / "tools"
    executable(tools / "srun", SRUN.replace("REAL", real))
    executable(tools / "first", FIRST.replace("VICTIM", "$1" if victim == "srun" else "$$"))
    monkeypatch.setitem(ways.PYTHON, "PATH", f"{tools}:{os.environ['PATH']}")
    flags = [*ways.MANUAL, "--max-restarts", "1", "--logs-dir", str(tmp_path / "runs")]
    ways.succeed(cluster, ways.slurm(cluster, 2, *flags, "--no-snapshot", "--", "true"))
    (earlier,) = run_files.attempt_folders(only_run(tmp_path / "runs")).values()
    assert read_json(run_files.EXIT.path(earlier))["cause"] == "node_lost"


def test_a_node_that_returns_within_the_wait_takes_part(begin):
    run = begin(recoveries.WAYS["ssh"], "--nodes", "2:4", "--max-restarts", "1")
    first = agents(run)
    earlier_files = {path.stat().st_ino for path in run.outputs()}
    try:
        link("down")(run)
        cut_connection(run)
        wait_until(lambda: asks_again(run) or run.is_over(), about=run.printed)
    finally:
        link("up")(run)
    second = working(run, 1, earlier_files=earlier_files)
    assert {node for node in first if first[node] != second[node]} == {"node2"}
    assert "continuing without this node" not in run.printed()


def asks_again(run: Run) -> bool:
    """Whether the run's leader is trying to reach the node that is cut off."""
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # an earlier try, which has just ended
            if process.name() == "ssh" and "node2" in process.cmdline():
                return True
    return False
