"""Whatever part of a run is killed or stopped, at any moment: no result is wrong.

The moment is drawn from a seed; `make soak` tries twenty. Exit code 0 means that the losses are
those of an undisturbed run. No process and no incomplete file is left, and if the same command is
given again, it continues from the last checkpoint.
"""

import hashlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil
import pytest

from muster import run_files
from tests import own_processes
from tests.cluster import ways
from tests.cluster.recoveries import network_of
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import Command, SavingScript, Trainer
from tests.launch.submit import becomes_true, run_well, unnamed, wait_until
from tests.train.workers import losses_by_step, read_json

pytestmark = pytest.mark.slow

MOMENTS = int(os.environ.get("SOAK_MOMENTS", "1"))
NODES = 2
STEPS = 80  # of 50 ms or more, so that the run is not over at the latest moment
WAYS = {"ssh": ways.ssh, "sbatch": ways.WAYS["sbatch"], "held": ways.in_held_job}
PROGRAMS: dict[str, Callable[[], Trainer]] = {
    "trainer": lambda: Trainer(
        *("--max-steps", str(STEPS), "--checkpoint-every", "5", "--no-save-model"),
        *("--resume", "auto"),
    ),
    "script": lambda: SavingScript(str(STEPS // 4)),  # with four steps per epoch
}
# Ends of command-line words by which a run's processes are found; daemons are found by name.
MARKS = {
    "leader": ("/launch/submit.py", "launch.leading.batch_job"),
    "agent": ("launch.agent", "launch.in_job.task"),
    "torchrun": ("torch.distributed.run",),
    "preload": ("/muster/worker/preload.py",),
}
DAEMONS = {"ssh": ("sshd",), "sbatch": ("srun", "slurmstepd"), "held": ("srun", "slurmstepd")}
STARTER = "starter"  # of workers: torchrun, or the preloading process
VICTIMS = [(way, one) for way in WAYS for one in ("leader", "agent", STARTER, *DAEMONS[way])]
MOST_DELAY_S = 2.0
STOPPED_S = (2.0, 20.0)  # for a while; until the processes that wait for it have given up


@dataclass(frozen=True)
class Moment:
    """What is done to which process of a run, and when."""

    chance: random.Random
    way: str
    program: str
    workers: str
    restarts: int
    victim: str
    signal: signal.Signals
    after: str
    delay_s: float  # from then on
    stopped_s: float

    @classmethod
    def drawn(cls, number: int) -> "Moment":
        chance = random.Random(f"kill {number}")
        way, victim = chance.choice(VICTIMS)
        workers = chance.choice(("torchrun", "preload"))
        return cls(
            chance,
            way,
            program=chance.choice(list(PROGRAMS)),
            workers=workers,
            restarts=chance.randrange(2),
            victim=workers if victim == STARTER else victim,
            signal=chance.choice((signal.SIGKILL, signal.SIGSTOP)),
            after=chance.choice(("its start", "first output", "first checkpoint")),
            delay_s=chance.uniform(0, MOST_DELAY_S),
            stopped_s=chance.choice(STOPPED_S),
        )

    def __str__(self) -> str:
        return "-".join((self.way, self.program, self.victim, self.signal.name))


class Training(Command):
    """A run that begins now and ends without being stopped."""

    def __init__(self, cluster: Cluster, moment: Moment, folder: Path) -> None:
        self._networks = {
            cluster.exec(node, "readlink", "/proc/self/ns/net").stdout.strip()
            for node in cluster.hosts
        }
        self._earlier = set(psutil.process_iter())
        self.checkpoints = folder.parent / "checkpoints"
        super().__init__(
            cluster,
            WAYS[moment.way],
            folder,
            *("--checkpoint-dir", str(self.checkpoints), "--workers", moment.workers),
            *("--max-restarts", str(moment.restarts)),
            program=PROGRAMS[moment.program](),
            nodes=NODES,
        )

    def left(self) -> list[psutil.Process]:
        """Return what its command has started, and what was started on the nodes since then."""
        new = [one for one in own_processes.everything() if one not in self._earlier]
        return [
            one
            for one in new
            if own_processes.SESSION in own_processes.environ(one)
            or network_of(one.pid) in self._networks
        ]

    def processes(self, kind: str) -> list[psutil.Process]:
        """Return the processes of this kind, without those that they have forked themselves."""
        found = [one for one in self.left() if is_a(kind, one)]
        return [one for one in found if not set(parents(one)) & set(found)]

    def has_output(self) -> bool:
        return any(path.stat().st_size for path in self.folder.glob("*/metrics/rank_*.jsonl"))

    def steps_saved(self) -> list[int]:
        """Return the steps of complete checkpoints."""
        manifests = self.checkpoints.glob("step_????????/manifest.json")
        return [int(path.parent.name.removeprefix("step_")) for path in manifests]

    def run_dirs(self) -> list[Path]:
        return [path.parent for path in self.folder.glob("*/config.yaml")]

    def attempts(self) -> list[Path]:
        """Return its run's attempts in order; none if the run has not come to its start."""
        return [
            attempt
            for run_dir in self.run_dirs()
            for attempt in (*run_files.attempt_folders(run_dir).values(), run_dir)
        ]


def is_a(kind: str, process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        if kind not in MARKS:
            return process.name().startswith(kind)
        program, *words = process.cmdline() or [""]
        is_python = Path(program).name.startswith("python")
        return is_python and any(word.endswith(MARKS[kind]) for word in words)
    return False


def parents(process: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.Error):
        return list(process.parents())
    return []


def strike(run: Training, moment: Moment) -> bool:
    """Hit the moment's victim; return whether that kills the run's leader."""
    begun = {
        "its start": lambda: run.processes(moment.victim),
        "first output": run.has_output,
        "first checkpoint": run.steps_saved,
    }[moment.after]
    wait_until(lambda: begun() or run.is_over())
    time.sleep(moment.delay_s)
    wait_until(lambda: run.processes(moment.victim) or run.is_over())
    found = run.processes(moment.victim)
    assert found, f"no {moment.victim} to hit: the run {'is over' if run.is_over() else 'goes on'}"
    victim = moment.chance.choice(found)
    leaders = [one for leader in run.processes("leader") for one in (leader, *parents(leader))]
    with suppress(psutil.NoSuchProcess):  # it has ended in the meantime
        try:
            victim.send_signal(moment.signal)
            if moment.signal == signal.SIGSTOP:
                becomes_true(run.is_over, moment.stopped_s)
        finally:
            victim.resume()
    return moment.signal == signal.SIGKILL and victim in leaders


@pytest.fixture(scope="module")
def whole(tmp_path_factory, _paced_python) -> Callable[[str], dict[int, float]]:
    """The losses of an undisturbed run of each program."""

    @cache
    def losses_of(name: str) -> dict[int, float]:
        folder = tmp_path_factory.mktemp("whole") / "runs"
        program = PROGRAMS[name]()
        flags = ["--launcher", "local", "--nodes", str(NODES), "--logs-dir", str(folder)]
        words = [*flags, "--run-id", "whole", *program.words(folder)]
        run_well(*words, cwd=program.working_folder(folder), python=_paced_python)
        return losses_by_step(folder / "whole")

    return losses_of


@pytest.fixture
def begin(cluster, tmp_path, request, moment) -> Iterator[Callable[[str], Training]]:
    """Start the moment's run in a folder with a given name, and leave nothing of it."""
    if moment.way == "held":
        request.getfixturevalue("held")
        wait_until(lambda: count_of_sleeps() == 4)  # the step beside the run's has begun
    begun: list[Training] = []

    def start_training(name: str) -> Training:
        begun.append(Training(cluster, moment, tmp_path / name))
        return begun[-1]

    yield start_training
    for run in begun:
        if moment.way == "sbatch":
            ways.cancel_all(cluster)
        run.process.terminate()
        run.end()
    cluster.run("scontrol", "update", f"nodename={','.join(cluster.hosts)}", "state=resume")


def count_of_sleeps() -> int:
    found = (one.info["cmdline"] for one in psutil.process_iter(["cmdline"]))
    return sum(words[1:] == ["10000"] for words in found if words)  # srun has completed the path


def assert_nothing_is_left(run: Training) -> None:
    """Check that no process is left, and no incomplete file with the name of a complete file."""
    wait_until(lambda: not run.left())
    for run_dir in run.run_dirs():
        assert unnamed(run_dir) == []
        for path in run_dir.rglob("*.json"):
            json.loads(path.read_text())
        for path in run_dir.rglob("*.jsonl"):
            list(map(json.loads, path.read_text().splitlines()))
    for folder in run.checkpoints.glob("*"):
        if not run_files.is_unfinished(folder.name):
            sums = {path.name: sha256(path) for path in folder.iterdir()}
            del sums["manifest.json"]
            assert read_json(folder / "manifest.json")["sha256"] == sums


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def assert_cause_is_recorded(run: Training) -> None:
    assert "error: " in run.printed()
    for run_dir in run.run_dirs():
        end = read_json(run_dir / "exit.json")
        assert end["code"] != 0 and end["cause"] and end["message"]


def name_of(number: int) -> str:
    return f"moment{number:02}-{Moment.drawn(number)}"


@pytest.mark.usefixtures("paced")
@pytest.mark.parametrize(
    "moment", [pytest.param(Moment.drawn(n), id=name_of(n)) for n in range(MOMENTS)]
)
def test_a_random_kill_never_makes_a_wrong_result(begin, whole, moment):
    expected = whole(moment.program)
    assert sorted(expected) == list(range(1, STEPS + 1))
    first = begin("first")
    leader_is_killed = strike(first, moment)
    code, *_ = first.end()
    assert_nothing_is_left(first)
    attempts = first.attempts()
    if code:
        if not leader_is_killed:
            assert_cause_is_recorded(first)
        last_saved = max(first.steps_saved(), default=0)
        again = begin("again")
        assert again.end()[0] == 0, again.printed()
        assert_nothing_is_left(again)
        assert min(losses_by_step(*again.attempts()), default=STEPS + 1) == last_saved + 1
        attempts += again.attempts()
        written = [*again.checkpoints.rglob("*"), *again.folder.rglob("*")]
        assert [path for path in written if run_files.is_unfinished(path.name)] == []
    assert losses_by_step(*attempts) == expected
