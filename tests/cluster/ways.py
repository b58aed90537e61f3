"""The ways of starting a run on the testbed, each as a user types it, and what is left of a run."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from launch.runs.run_record import is_same_process
from tests import commands
from tests.cluster.testbeds import REPOSITORY, Cluster
from tests.commands import finish
from tests.launch.submit import SUBMIT, wait_until
from tests.preload import interpreter

SSH = str(REPOSITORY / "launch" / "ssh.sh")
MARKS = ("-m train.worker", "worker_main.py", "run_module.py")
# Of a job: on its first node it says why the run failed, when all of the run is gone.
LEADER = "run_module.py launch.leading.batch_job"
STEPS = Path(__file__).with_name("programs") / "steps.py"
SBATCH = [sys.executable, str(Path(__file__).with_name("sbatch.py"))]
PYTHON = {"MUSTER_PYTHON": sys.executable}


def environment(cluster: Cluster) -> dict[str, str]:
    return {**os.environ, **cluster.env, **PYTHON}


def start(cluster: Cluster, argv: list[str], cwd: Path = REPOSITORY) -> subprocess.Popen:
    return commands.begin(*argv, cwd=cwd, env={**cluster.env, **PYTHON})


def ssh(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    hosts = ",".join(cluster.hosts[:nodes])
    return [SSH, hosts, "--ssh-config", str(cluster.ssh_config), *flags]


def local(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    return [interpreter(), SUBMIT, "--launcher", "local", "--nodes", str(nodes), *flags]


def slurm(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    wanted = ["--launcher", "slurm", "--wait", "--nodes", str(nodes)]
    return [sys.executable, SUBMIT, *wanted, *flags]


def sbatch(script: str) -> Callable[..., list[str]]:
    """A script of slurm/, to the end of its job."""

    def way(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
        output = Path(flags[flags.index("--logs-dir") + 1]) / "job.out"
        own = ["--nodes", str(nodes), f"--output={output}"]
        return [*SBATCH, *own, str(REPOSITORY / "slurm" / script), *flags]

    return way


class Trainer:
    """This repository's own, as what a run is of."""

    output = "*/metrics/rank_0000[0-3].jsonl"
    output_bytes = 2000

    def words(self, folder: Path) -> list[str]:
        return ["--task", "synthetic", "--epochs", "1000000", "--threads", "1"]

    def place(self, folder: Path) -> Path:
        """Where the command is given."""
        return REPOSITORY


class Script(Trainer):
    """A user's script, with no word of Muster in it, in a folder of its own."""

    output = "*/workers/rank_0000[0-3].out"
    output_bytes = 100

    def __init__(self, *words: str) -> None:
        self._own = words

    def words(self, folder: Path) -> list[str]:
        return ["--", "train.py", "--folder", str(folder), *self._own]

    def place(self, folder: Path) -> Path:
        project = folder.parent / "project"  # beside the runs: a snapshot has none of them
        project.mkdir()
        (project / "train.py").write_text(STEPS.read_text())
        return project


class Run:
    """A run that trains and trains, to do something terrible to."""

    def __init__(
        self,
        cluster: Cluster,
        way: Callable[..., list[str]],
        folder: Path,
        *more: str,
        program: Trainer | None = None,
        ranks: int = 4,
    ) -> None:
        self.cluster, self.folder, self._program = cluster, folder, program or Trainer()
        self._ranks = ranks
        flags = ["--logs-dir", str(folder), *more, *self._program.words(folder)]
        place = self._program.place(folder)
        self.process = start(cluster, way(cluster, 4, *flags), place)
        wait_until(lambda: self._all_train() or self.process.poll() is not None)
        assert self._all_train(), self.process.communicate(timeout=5)
        (self.run_dir,) = (path.parent for path in folder.glob("*/config.yaml"))

    def _all_train(self) -> bool:
        files = list(self.folder.glob(self._program.output))
        enough = self._program.output_bytes
        return len(files) == self._ranks and all(path.stat().st_size > enough for path in files)

    def agent(self, node: int) -> psutil.Process:
        record = json.loads((self.run_dir / "agents" / f"node_{node:05d}.json").read_text())
        return psutil.Process(record["pid"])

    def torchrun(self, node: int) -> psutil.Process:
        (child,) = self.agent(node).children()
        return child

    def worker(self, node: int) -> psutil.Process:
        for process in self.agent(node).children(recursive=True):
            words = process.cmdline()
            is_worker = any(word.endswith("muster/worker/worker_main.py") for word in words)
            if is_worker and "torch.distributed.run" not in words:
                return process
        raise AssertionError(f"no worker on node {node}")

    def ends(self) -> None:
        """Wait until nothing of the run is left anywhere."""
        assert wait_until(lambda: self.left() == []), self.left()

    def left(self) -> list[str]:
        """Command lines of the run's processes, on whatever node; all nodes share one kernel."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            named = self.run_dir.name in words or str(self.folder) in words
            mine = named and not words.startswith("srun ") and LEADER not in words
            if mine and any(mark in words for mark in MARKS):
                found.append(words[:200])
        return found + [f"agent {pid}" for pid in self._agents_alive()]

    def _agents_alive(self) -> list[int]:
        alive = []
        for path in self.run_dir.glob("agents/node_?????.json"):
            record = json.loads(path.read_text())
            try:
                process = psutil.Process(record["pid"])
                if (
                    is_same_process(process.pid, record)
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    alive.append(record["pid"])
            except psutil.Error:
                continue
        return alive

    def end(self) -> tuple[int, str, str]:
        return finish(self.process, timeout_s=300)


def running_job(cluster: Cluster) -> str:
    """The number of the one job that runs; one that has ended may be in the queue for a while."""
    asked = ("squeue", "--noheader", "--states=running", "--format=%A")
    (job,) = cluster.run(*asked).stdout.split()
    return job


def cancel_all(cluster: Cluster) -> None:
    """Leave no job behind: the next test has the testbed to itself."""
    cluster.run("scancel", "--user", "root")
    assert wait_until(lambda: not cluster.run("squeue", "--noheader").stdout.strip())
