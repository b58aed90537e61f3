"""A run goes through few files: each is one that whoever reads the code has to open."""

import os
import signal
import sys

import pytest

from muster import run_files
from muster.checkout import CHECKOUT
from muster.writing import read_json
from tests.commands import begin, ended, finish
from tests.launch.submit import wait_until
from tests.launch.walked import entered, traced
from tests.launch.walked.sitecustomize import ANEW

OF_RUN = 36
OF_RESTART = 24  # in the leader
OF_STACKS = 22  # one is shared with the report of a failure, which names the same line
MUSTER = str(CHECKOUT / "muster" / "command.py")
WORDS = ("run", "--launcher", "local", "--nodes", "2", "--workers", "manual", "--run-id", "walk")
WORDS += ("--hang-after-s", "0")  # agents look at workers' progress after 10 s: on a slow machine
# Each rank says that it has begun; in the first attempt it waits, in the second it ends.
WAITS = """import os, pathlib, time
attempt, rank = os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]
pathlib.Path(f"began.{attempt}.{rank}").write_text(str(os.getpid()))
while not pathlib.Path(f"go.{attempt}").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def env(tmp_path) -> dict[str, str]:
    """With that, and with runs of its own: others may have the same name."""
    return {**traced(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}


def listed(files: list[str]) -> str:
    return f"{len(files)} files:\n{''.join(files)}"


@pytest.mark.slow
def test_a_run_of_two_nodes_enters_few_files(tmp_path, env):
    (tmp_path / "t.py").write_text("print('here')\n")
    process = begin(sys.executable, MUSTER, *WORDS, "--", "t.py", cwd=tmp_path, env=env)
    code, out, err = finish(process)
    assert code == 0 and "here" in out, err
    first = read_json(run_files.AGENT.path(tmp_path / "logs" / "walk", node=0))
    files = entered(tmp_path, process.pid, first["pid"])
    assert len(files) <= OF_RUN, listed(files)


@pytest.mark.slow
def test_a_restart_after_a_kill_and_stacks_enter_few_files(tmp_path, env):
    (tmp_path / "t.py").write_text(WAITS)

    def began(attempt: int) -> bool:
        return all(
            (tmp_path / f"began.{attempt}.{rank}").is_file()
            and (tmp_path / f"began.{attempt}.{rank}").read_text()
            for rank in (0, 1)
        )

    words = (*WORDS, "--max-restarts", "1", "--", "t.py")
    with ended(begin(sys.executable, MUSTER, *words, cwd=tmp_path, env=env)) as leader:
        assert wait_until(lambda: began(0))
        asked: list[int] = []  # the processes that have asked

        def is_seen() -> bool:
            stacks = begin(sys.executable, MUSTER, "jobs", "stacks", "walk", cwd=tmp_path, env=env)
            asked.append(stacks.pid)
            code, out, _ = finish(stacks)
            return code == 0 and "rank 1 on node1: it is in t.py:5" in out

        assert wait_until(is_seen)
        leader.send_signal(ANEW)
        assert wait_until((tmp_path / "notes" / f"{leader.pid}.before").exists)
        os.kill(int((tmp_path / "began.0.1").read_text()), signal.SIGKILL)
        assert wait_until(lambda: began(1))
        of_restart = entered(tmp_path, leader.pid)
        (tmp_path / "go.1").touch()
        code, out, err = finish(leader)
    assert code == 0, out + err
    of_stacks = entered(tmp_path, asked[-1])
    assert len(of_stacks) <= OF_STACKS, listed(of_stacks)
    assert len(of_restart) <= OF_RESTART, listed(of_restart)
