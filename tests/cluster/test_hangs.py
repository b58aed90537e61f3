"""A run that hangs says which rank, and where: on real Slurm and over real ssh, four nodes."""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from muster.errors import NO_RETRY
from tests.cluster import ways
from tests.cluster.test_programs import only_run, project, slurm, ssh
from tests.cluster.testbeds import REPOSITORY
from tests.launch.submit import wait_until

assert project
PROGRAM = Path(__file__).with_name("programs") / "hangs.py"
JOBS = str(REPOSITORY / "launch" / "jobs.py")
# What is said of rank 2, in each way to hang.
SENTENCES = {
    "asleep": r"it is in asleep, hangs\.py:\d+, for \d+ s, and sleeps",
    "loader": r"it is in loader, hangs\.py:\d+, for \d+ s, and sleeps",
    "lock": r"it is in lock, hangs\.py:\d+, for \d+ s, and sleeps",
    "spinning": r"it is in spin, hangs\.py:\d+, for \d+ s, and computes",
    "held": r"its interpreter is held by other code, such as C, called in held, hangs\.py:\d+",
    "stopped": r"it is stopped by a signal \(SIGSTOP\)",
    "vfork": r"it is in uninterruptible sleep.*, in vfork, hangs\.py:\d+",
}


def ask(cluster, run: str, *flags: str) -> str:
    """What it answers once it does: who leads it may be held up for longer than that is waited."""
    done = []

    def answers() -> bool:
        done[:] = [cluster.run(sys.executable, JOBS, "stacks", run, *flags)]
        return done[0].returncode == 0

    assert wait_until(answers), done[0].stderr
    return done[0].stdout


def cancel(cluster, project: Path, process: subprocess.Popen) -> tuple[int, str, str]:
    """End the run, wherever it is; what its launcher says of it."""
    cluster.run(sys.executable, JOBS, "cancel", only_run(project).name)
    return ways.finish(process)


def let_go(signs: Path, way: str, pid: int) -> None:
    (signs / f"release-{way}").touch()
    if way == "stopped":
        os.kill(pid, signal.SIGCONT)
    if way == "vfork":
        psutil.Process(pid).children()[0].kill()


# in an ordinary run each of the two is met through one launcher
SEVEN_WAYS = ["ssh", "slurm"] if "WHOLE_MATRIX" in os.environ else ["ssh"]
LINK_WAYS = ["ssh", "slurm"] if "WHOLE_MATRIX" in os.environ else ["slurm"]
UNASKED_WAYS = ["ssh", "slurm"] if "WHOLE_MATRIX" in os.environ else ["slurm"]


@pytest.mark.parametrize("way", SEVEN_WAYS)
def test_seven_ways_to_hang_and_two_orders_are_told_apart(cluster, project, tmp_path, way):
    signs = tmp_path / "signs"
    signs.mkdir()
    shutil.copy(PROGRAM, project)
    words = ["--nodes", "4", "--nproc-per-node", "1", "--", "hangs.py", str(signs)]
    argv = slurm(*words) if way == "slurm" else ssh(cluster, *words)
    with (signs / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = ways.start(cluster, argv, project)
        try:
            for name, sentence in SENTENCES.items():
                sign = signs / f"at-{name}"
                assert wait_until(lambda sign=sign: sign.exists() and sign.read_text()), name
                run = only_run(project).name
                expected = re.compile(
                    rf"rank 2 on \S+ has not come to all_reduce \d+ .*: {sentence}"
                )
                found: list[str] = []

                def is_answered(expected=expected, found=found, run=run) -> bool:
                    found[:] = ask(cluster, run).splitlines()[:1]
                    return bool(expected.search(found[0])) and "ranks 0, 1, 3 wait" in found[0]

                assert wait_until(is_answered), (name, found)
                if name == "held":
                    fcntl.flock(lock, fcntl.LOCK_UN)
                let_go(signs, name, int(sign.read_text()))
            assert wait_until(lambda: len(list(signs.glob("at-order-*"))) == 4)
            assert wait_until(lambda: "in different orders" in ask(cluster, run))
            answer = ask(cluster, run)
            assert "rank 3 is in all_reduce 1 of group 1 (pair), in main, hangs.py:" in answer, (
                answer
            )
            full = ask(cluster, run, "--full")
            assert "hangs.py" in full and "thread main" in full and full.count("(process ") == 4
        finally:
            code, out, err = cancel(cluster, project, process)
    assert code == 143, (out, err)


@pytest.mark.parametrize("way", UNASKED_WAYS)
def test_a_hang_is_said_without_being_asked(cluster, project, way):
    shutil.copy(PROGRAM.with_name("holds.py"), project)
    words = ["--nodes", "4", "--nproc-per-node", "1", "--hang-after-s", "6", "--on-hang", "stop"]
    words += ["--max-restarts", "1", "--", "holds.py"]
    argv = slurm(*words) if way == "slurm" else ssh(cluster, *words)
    code, out, err = ways.finish(ways.start(cluster, argv, project))
    assert code == NO_RETRY, (code, out, err)
    assert "total 6" in out
    assert re.search(
        r"no progress for \d+ s: rank 2 on \S+ has not come to barrier \d+ of the default group: "
        r"it is in load_data, holds\.py:\d+, for \d+ s, and sleeps; ranks 0, 1, 3 wait",
        err.splitlines()[-1],
    ), err
    run = only_run(project)
    seen = json.loads((run / "stacks" / "hang.json").read_text())
    assert len(seen["reports"]) == 4 and not (run / "attempts").exists()


LATE = r"^rank 2 on \S+ has not come"
SILENT = r"^node3 does not answer: nothing from its agent for 3"


@pytest.mark.parametrize("way", LINK_WAYS)
def test_a_node_whose_link_is_down_is_named(cluster, project, tmp_path, way):
    (tmp_path / "signs").mkdir()
    shutil.copy(PROGRAM, project)
    words = ["--nodes", "4", "--nproc-per-node", "1", "--", "hangs.py", str(tmp_path / "signs")]
    argv = slurm(*words) if way == "slurm" else ssh(cluster, *words)
    process = ways.start(cluster, argv, project)
    try:
        assert wait_until((tmp_path / "signs" / "at-asleep").exists)
        run = only_run(project).name
        assert wait_until(lambda: re.search(LATE, ask(cluster, run), re.M))
        cluster.exec("node3", "ip", "link", "set", "exp0", "down")
        answer = ""

        def is_named() -> bool:
            nonlocal answer
            answer = ask(cluster, run)
            return bool(re.search(SILENT, answer, re.M) and re.search(LATE, answer, re.M))

        try:
            assert wait_until(is_named), answer
        finally:
            cluster.exec("node3", "ip", "link", "set", "exp0", "up")
    finally:
        cancel(cluster, project, process)
