"""A run that hangs names the rank and the place: on real Slurm and over real ssh, four nodes."""

import fcntl
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from muster.errors import NO_RETRY
from tests.cluster import ways
from tests.cluster.ways import WAYS, Run, Script
from tests.launch.submit import JOBS, only_run, wait_until
from tests.train.workers import read_json

# What is reported about rank 2 for each way to hang.
SENTENCES = {
    "asleep": r"it has been (sleeping|computing) for \d+ s in asleep, train\.py:\d+",
    "loader": r"it has been sleeping for \d+ s in loader, train\.py:\d+",
    "lock": r"it has been sleeping for \d+ s in lock, train\.py:\d+",
    "spinning": r"it has been computing for \d+ s in spinning, train\.py:\d+",
    "held": r"it is \w+ while .* GIL, called in held, train\.py:\d+",
    "stopped": r"it is .*\(SIGSTOP\)",
    "vfork": r"it is in uninterruptible sleep.*, in vfork, train\.py:\d+",
}


class Hangs(Script):
    """hangs.py, whose run is asked as soon as its agents are there."""

    file = "hangs.py"
    output = "*/agents/node_?????.json"
    output_bytes = 10


class Hung(Run):
    """A run of hangs.py; the program and the test leave files for each other in `folder`."""

    def ask(self, *flags: str) -> str:
        """Ask until the run answers: its leader may be held up longer than the command waits."""
        words = [sys.executable, JOBS, "stacks", self.run_dir.name, *flags]
        done = []

        def answers() -> bool:
            done[:] = [self.cluster.run(*words)]
            return done[0].returncode == 0

        wait_until(answers, about=lambda: done[0].stderr)
        return done[0].stdout

    def answers(self, *patterns: str) -> None:
        """Wait until the answer has lines that match all patterns."""
        found = [""]

        def is_answered() -> bool:
            found[:] = [self.ask()]
            return all(re.search(one, found[0], re.MULTILINE) for one in patterns)

        wait_until(is_answered, about=lambda: (patterns, found))


@contextmanager
def hung(cluster, folder: Path) -> Iterator[Hung]:
    """Start the run, and cancel it at the end of the block."""
    run = Hung(cluster, WAYS["ssh"], folder / "runs", program=Hangs())
    try:
        yield run
    finally:
        cluster.run(sys.executable, JOBS, "cancel", run.run_dir.name)
        code = run.end()[0]
    assert code == 143, run.printed()


def let_go(signs: Path, way: str, pid: int) -> None:
    (signs / f"release-{way}").touch()
    if way == "stopped":
        os.kill(pid, signal.SIGCONT)
    if way == "vfork":
        psutil.Process(pid).children()[0].kill()


@pytest.mark.slow
def test_seven_ways_to_hang_and_two_orders_are_distinguished(cluster, tmp_path):
    with hung(cluster, tmp_path) as run, (run.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, sentence in SENTENCES.items():
            sign = run.folder / f"at-{name}"
            wait_until(
                lambda sign=sign: sign.exists() and sign.read_text(), about=lambda name=name: name
            )
            late = rf"rank 2 on \S+ has not reached all_reduce \d+ .*: {sentence}"
            run.answers(rf"\A.*{late}.*ranks 0, 1, 3 are waiting")
            if name == "held":
                fcntl.flock(lock, fcntl.LOCK_UN)
            let_go(run.folder, name, int(sign.read_text()))
        wait_until(lambda: len(list(run.folder.glob("at-order-*"))) == 4)
        run.answers(
            "in different orders",
            r"rank 3 is in all_reduce 1 of group 1 \(pair\), in main, train\.py:",
        )
        full = run.ask("--full")
        assert "train.py" in full and "thread main" in full and full.count("(process ") == 4


def test_a_hang_is_reported_without_a_question(cluster, project):
    stops = ["--hang-after-s", "10", "--on-hang", "stop", "--max-restarts", "1"]
    argv = ways.slurm(cluster, 4, *stops, "--", "hangs.py", str(project))
    code, out, err = ways.call(cluster, argv, project)
    assert code == NO_RETRY, (code, out, err)
    assert re.search(
        r"no progress for \d+ s: rank 2 on \S+ has not reached all_reduce \d+ of the default "
        r"group: it has been (sleeping|computing) for \d+ s in asleep, hangs\.py:\d+; "
        r"ranks 0, 1, 3 are waiting",
        err.splitlines()[-1],
    ), err
    run = only_run(project / "logs")
    seen = read_json(run / "stacks" / "hang.json")
    assert len(seen["reports"]) == 4 and not (run / "attempts").exists()
