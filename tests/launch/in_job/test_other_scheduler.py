"""Under a scheduler other than Slurm, runs are led, verified and requeued by the same means.

`LaneJob` shows how such a class is written; docs/extending.md lists what it must answer. Its nodes
are only names: all of their agents run on this machine.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from launch.nodes.scheduler import SchedulerJob
from launch.spec import Assignment
from muster import run_files
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.writing import read_json
from tests.commands import begin, ended, finish
from tests.launch.submit import wait_until
from tests.written import write

# The scheduler's own command, like Slurm's srun: it starts a process on each node and tells it its
# place.
STARTS = """
import os, subprocess, sys
exec(os.environ.get("LANE_BEFORE", ""))
started = []
for number, node in enumerate(sys.argv[1].split(",")):
    place = {"LANE_TASK": str(number), "LANE_NODE": node, "LANE_FROM": "127.0.0.1"}
    started.append(subprocess.Popen(sys.argv[2:], env={**os.environ, **place}))
sys.exit(max([process.wait() for process in started]))
"""


class LaneJob(SchedulerJob):
    launcher = "lane"
    shown_by = "lane status"
    index_variable = "LANE_TASK"
    node_variable = "LANE_NODE"
    origin_variable = "LANE_FROM"
    rank_variables = ("LANE_TASK", "LANE_TASK_OF_NODE")

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "LaneJob":
        number, requeues = env["LANE_JOB"], int(env["LANE_REQUEUES"])
        nodes = env["LANE_NODES"].count(",") + 1
        return cls(job_id=number, name=number, num_nodes=nodes, attempt=requeues, env=env)

    @property
    def nodes(self) -> list[str]:
        return self.env["LANE_NODES"].split(",")

    @property
    def folder(self) -> Path:
        return Path(self.env["LANE_FOLDER"])

    def command(self, hosts: Sequence[str], argv: Sequence[str], step: str) -> list[str]:
        return [sys.executable, "-c", STARTS, ",".join(hosts), *argv]

    def killed_early(
        self, command: "subprocess.Popen[bytes]", log: Path, count: int
    ) -> Sequence[int]:
        if command.poll() is not None:
            raise MusterError(log.read_text())
        return ()

    def silent_nodes(self, hosts: Sequence[str]) -> list[str]:
        return []

    def end_unix_s(self) -> float | None:
        return None

    def is_running(self) -> bool:
        return True

    def requeue(self, excluded: str | None) -> None:
        (self.folder / "requeued").touch()

    @classmethod
    def worker_variables(cls, assignment: Assignment, env: Mapping[str, str]) -> dict[str, str]:
        return {"LANE_TASKS": str(sum(assignment.counts))}


PROGRAM = """
import os, time
from pathlib import Path
import muster

rank, folder = os.environ["RANK"], Path(os.environ["LANE_FOLDER"])
saved = folder / f"saved-{rank}"
if saved.exists():
    raise SystemExit(print("goes on"))
names = "LANE_NODE", "LANE_TASK", "LANE_TASK_OF_NODE", "LANE_TASKS", "MUSTER_ATTEMPT"
print(*(os.environ[name] for name in names))
muster.on_stop(saved.touch)
(folder / f"ready-{rank}").touch()
while True:
    time.sleep(0.05)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Start a job of two nodes as the scheduler does, also after it was requeued."""
    for name in [name for name in os.environ if name.startswith(("SLURM", "SBATCH"))]:
        monkeypatch.delenv(name)
    write(tmp_path, {"waits.py": PROGRAM})
    env = {"MUSTER_SCHEDULER": "tests.launch.in_job.test_other_scheduler:LaneJob"}
    env |= {"LANE_JOB": "7", "LANE_NODES": "left,right", "LANE_FOLDER": str(tmp_path)}
    leader = [sys.executable, CHECKOUT / "muster" / "run_module.py", "launch.leading.batch_job"]

    def start(requeues: int, *flags: str) -> subprocess.Popen[str]:
        flags = ("--logs-dir", "logs", *flags)
        words = [*leader, "new", *flags, "--workers", "manual", "--", "waits.py"]
        return begin(*words, cwd=tmp_path, env={**env, "LANE_REQUEUES": str(requeues)})

    return start


def outputs(run_dir: Path) -> list[str]:
    """The output of each worker of the last attempt."""
    return [path.read_text() for path in sorted(run_dir.glob("workers/*.out"))]


def test_a_run_is_led_and_requeued_on_two_nodes(job, tmp_path):
    with ended(job(0)) as begun:
        wait_until(lambda: len([*tmp_path.glob("ready-*")]) == 2)
        begun.send_signal(signal.SIGUSR1)  # the job's time is nearly over
        code, out, err = finish(begun)
    assert code == 75 and "out of time: requeueing job 7 " in err, out + err
    assert (tmp_path / "requeued").exists()
    (run_dir,) = (tmp_path / "logs").iterdir()
    record = read_json(run_files.JOB.path(run_dir))
    assert (record["launcher"], record["job_id"]) == ("lane", "7")
    assert outputs(run_dir) == ["left 0 0 2 0\n", "right 1 0 2 0\n"]
    code, out, err = finish(job(1))
    assert code == 0 and outputs(run_dir) == ["goes on\n"] * 2, out + err
    assert [*(tmp_path / "logs").iterdir()] == [run_dir]


def test_an_agent_without_the_secret_of_its_leader_takes_no_part(job, tmp_path, monkeypatch):
    """The scheduler names the leader, but the program listening there must prove that it is one."""
    changes = "import json, pathlib, sys; file = pathlib.Path(sys.argv[-1]);"
    changes += "file.write_text(json.dumps(json.loads(file.read_text()) | {'token': 'guessed'}))"
    monkeypatch.setenv("LANE_BEFORE", changes)
    code, out, err = finish(job(0, "--join-timeout-s", "60"))
    assert code == 1 and "another program is listening there" in err, out + err
    assert not [*tmp_path.glob("ready-*")]
