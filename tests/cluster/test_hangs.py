"""A run that hangs says which rank, and where: on real Slurm and over real ssh, four nodes."""

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cluster import ways
from tests.cluster.test_programs import only_run, project, slurm, ssh
from tests.cluster.testbeds import REPOSITORY
from tests.launch.submit import wait_until

assert project
PROGRAM = Path(__file__).with_name("programs") / "hangs.py"
JOBS = str(REPOSITORY / "launch" / "jobs.py")
# What is said of rank 2, in each way to hang.
SAID = {
    "asleep": r"it is in asleep, hangs\.py:\d+, for \d+ s, and sleeps",
    "loader": r"it is in loader, hangs\.py:\d+, .* its process \d+, which is in __getitem__, "
    r"hangs\.py:\d+ and sleeps",
    "lock": r"it is in lock, hangs\.py:\d+, for \d+ s, and waits for a lock",
    "spinning": r"it is in spin, hangs\.py:\d+, for \d+ s, and computes",
    "held": r"its interpreter is held by other code, such as C, called in held, hangs\.py:\d+",
    "stopped": r"it is stopped by a signal \(SIGSTOP\)",
    "vfork": r"it is in uninterruptible sleep.*, in vfork, hangs\.py:\d+",
}


def ask(cluster, run: str, *flags: str) -> str:
    done = subprocess.run(
        [sys.executable, JOBS, "stacks", run, *flags],
        env=ways.environment(cluster),
        capture_output=True,
        text=True,
        timeout=15,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def let_go(signs: Path, way: str, pid: int) -> None:
    (signs / f"release-{way}").touch()
    if way == "stopped":
        os.kill(pid, signal.SIGCONT)
    if way == "vfork":
        psutil.Process(pid).children()[0].kill()


@pytest.mark.parametrize("way", ["ssh", "slurm"])
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
            for name, said in SAID.items():
                sign = signs / f"at-{name}"
                assert wait_until(lambda sign=sign: sign.exists() and sign.read_text(), 60), name
                run = only_run(project).name
                expected = re.compile(rf"rank 2 on \S+ has not come to all_reduce \d+ .*: {said}")
                found: list[str] = []

                def is_said(expected=expected, found=found, run=run) -> bool:
                    found[:] = ask(cluster, run).splitlines()[:1]
                    return bool(expected.search(found[0])) and "ranks 0, 1, 3 wait" in found[0]

                assert wait_until(is_said, 15), (name, found)
                if name == "held":
                    fcntl.flock(lock, fcntl.LOCK_UN)
                let_go(signs, name, int(sign.read_text()))
            assert wait_until(lambda: len(list(signs.glob("at-order-*"))) == 4, 20)
            assert wait_until(lambda: "in different orders" in ask(cluster, run), 15)
            said = ask(cluster, run)
            assert "rank 3 is in all_reduce 1 of group 1 (pair), in main, hangs.py:" in said, said
            full = ask(cluster, run, "--full")
            assert "hangs.py" in full and "thread main" in full and full.count("(process ") == 4
        finally:
            process.send_signal(signal.SIGINT)
            code, out, err = ways.finish(process)
    assert code == 130, (out, err)
