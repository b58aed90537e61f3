"""A run that hangs says which rank, and where: on real Slurm and over real ssh, four nodes."""

import fcntl
import os
import re
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from muster.errors import NO_RETRY
from tests.cluster import ways
from tests.cluster.ways import JOBS, WAYS, WHOLE
from tests.launch.submit import wait_until
from tests.train.workers import read_json

FLAGS = ("--nproc-per-node", "1")
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
# in an ordinary run each test meets one launcher
OVER_SSH = ["ssh", "slurm"] if WHOLE else ["ssh"]
ON_SLURM = ["ssh", "slurm"] if WHOLE else ["slurm"]


class Hung:
    """A run of hangs.py, and the folder where it and the test leave signs for each other."""

    def __init__(self, cluster, project: Path, signs: Path) -> None:
        self.cluster, self.signs, self._logs = cluster, signs, project / "logs"

    def ask(self, *flags: str) -> str:
        """What it answers once it does: who leads it may be held up longer than one waits."""
        words = [sys.executable, JOBS, "stacks", self.run_id, *flags]
        done = []

        def answers() -> bool:
            done[:] = [self.cluster.run(*words)]
            return done[0].returncode == 0

        assert wait_until(answers), done[0].stderr
        return done[0].stdout

    def answers(self, *patterns: str) -> None:
        """Wait until its answer has lines with all of these."""
        found = [""]

        def is_answered() -> bool:
            found[:] = [self.ask()]
            return all(re.search(one, found[0], re.MULTILINE) for one in patterns)

        assert wait_until(is_answered), (patterns, found)

    @property
    def run_id(self) -> str:
        return ways.only_run(self._logs).name


@contextmanager
def hung(cluster, project: Path, way: str):
    """The run, until it is cancelled."""
    signs = project.with_name("signs")
    signs.mkdir()
    argv = WAYS[way](cluster, 4, *FLAGS, "--", "hangs.py", str(signs))
    process = ways.start(cluster, argv, project)
    run = Hung(cluster, project, signs)
    try:
        yield run
    finally:
        cluster.run(sys.executable, JOBS, "cancel", run.run_id)
        code, out, err = ways.finish(process)
    assert code == 143, (out, err)


def let_go(signs: Path, way: str, pid: int) -> None:
    (signs / f"release-{way}").touch()
    if way == "stopped":
        os.kill(pid, signal.SIGCONT)
    if way == "vfork":
        psutil.Process(pid).children()[0].kill()


@pytest.mark.parametrize("way", OVER_SSH)
def test_seven_ways_to_hang_and_two_orders_are_told_apart(cluster, project, way):
    with hung(cluster, project, way) as run, (run.signs / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, sentence in SENTENCES.items():
            sign = run.signs / f"at-{name}"
            assert wait_until(lambda sign=sign: sign.exists() and sign.read_text()), name
            late = rf"rank 2 on \S+ has not come to all_reduce \d+ .*: {sentence}"
            run.answers(rf"\A.*{late}.*ranks 0, 1, 3 wait")
            if name == "held":
                fcntl.flock(lock, fcntl.LOCK_UN)
            let_go(run.signs, name, int(sign.read_text()))
        assert wait_until(lambda: len(list(run.signs.glob("at-order-*"))) == 4)
        run.answers(
            "in different orders",
            r"rank 3 is in all_reduce 1 of group 1 \(pair\), in main, hangs\.py:",
        )
        full = run.ask("--full")
        assert "hangs.py" in full and "thread main" in full and full.count("(process ") == 4


@pytest.mark.parametrize("way", ON_SLURM)
def test_a_hang_is_said_without_being_asked(cluster, project, way):
    stops = ["--hang-after-s", "6", "--on-hang", "stop", "--max-restarts", "1"]
    words = [*FLAGS, *stops, "--", "hangs.py", str(project)]
    code, out, err = ways.call(cluster, WAYS[way](cluster, 4, *words), project)
    assert code == NO_RETRY, (code, out, err)
    assert re.search(
        r"no progress for \d+ s: rank 2 on \S+ has not come to all_reduce \d+ of the default "
        r"group: it is in asleep, hangs\.py:\d+, for \d+ s, and sleeps; ranks 0, 1, 3 wait",
        err.splitlines()[-1],
    ), err
    run = ways.only_run(project / "logs")
    seen = read_json(run / "stacks" / "hang.json")
    assert len(seen["reports"]) == 4 and not (run / "attempts").exists()


@pytest.mark.parametrize("way", ON_SLURM)
def test_a_node_whose_link_is_down_is_named(cluster, project, way):
    late, silent = r"^rank 2 on \S+ has not come", "^node3 does not answer: nothing from its agent"
    with hung(cluster, project, way) as run:
        assert wait_until((run.signs / "at-asleep").exists)
        run.answers(late)
        cluster.exec("node3", "ip", "link", "set", "exp0", "down")
        try:
            run.answers(late, f"{silent} for 3")
        finally:
            cluster.exec("node3", "ip", "link", "set", "exp0", "up")
