"""Ways to start a run on the testbed, each as a user types it, and what is left of a run."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from launch.agent.processes import process_tree
from launch.runs.run_record import is_same_process
from muster.checkout import CHECKOUT
from tests import commands
from tests.cluster.testbeds import TESTBED, Cluster
from tests.commands import finish
from tests.fork_server import interpreter
from tests.launch.submit import JOBS, SUBMIT, only_run, wait_until
from tests.train.workers import losses, read_json

SSH = str(CHECKOUT / "launch" / "ssh.sh")
MARKS = ("-m train.worker", "worker_main.py", "run_module.py")
# The leader of a job, which prints on its first node why the run failed, after all else has ended.
LEADER = "run_module.py launch.leading.batch_job"
PROGRAMS = Path(__file__).with_name("programs")
SBATCH = [sys.executable, str(Path(__file__).with_name("sbatch.py"))]
PYTHON = {"MUSTER_PYTHON": sys.executable}
OF_TASK = ["--evaluate", "never", "--threads", "1"]
SYNTHETIC = ["--task", "synthetic", *OF_TASK]
SHORT = [*SYNTHETIC, "--max-steps", "4"]
# For a user's program that is not Python, such as a program that has to begin immediately.
MANUAL = ["--workers", "manual"]
ENDLESS = [*MANUAL, "--no-snapshot", "--", "sleep", "10000"]


def environment(cluster: Cluster) -> dict[str, str]:
    return {**os.environ, **cluster.env, **PYTHON}


def start(cluster: Cluster, argv: list[str], cwd: Path = CHECKOUT) -> subprocess.Popen:
    return commands.begin(*argv, cwd=cwd, env={**cluster.env, **PYTHON})


def call(cluster: Cluster, argv: list[str], cwd: Path = CHECKOUT) -> tuple[int, str, str]:
    """Run a command to its end; return its exit code, stdout and stderr."""
    return finish(start(cluster, argv, cwd), timeout_s=600)


def succeed(cluster: Cluster, argv: list[str], cwd: Path = CHECKOUT) -> tuple[str, str]:
    """Run a command that must succeed; return its stdout and stderr."""
    code, out, err = call(cluster, argv, cwd)
    assert code == 0, (code, out, err)
    return out, err


def jobs(cluster: Cluster, *words: str) -> str:
    return cluster.run(sys.executable, JOBS, *words).stdout


def ssh(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    hosts = ",".join(cluster.hosts[:nodes])
    return [SSH, hosts, "--ssh-config", str(cluster.ssh_config), *flags]


def local(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    return [interpreter(), SUBMIT, "--launcher", "local", "--nodes", str(nodes), *flags]


def slurm(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    wanted = ["--launcher", "slurm", "--wait", "--nodes", str(nodes)]
    return [sys.executable, SUBMIT, *wanted, *flags]


def in_held_job(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
    return [sys.executable, SUBMIT, "--launcher", "slurm", "--nodes", str(nodes), *flags]


def sbatch(script: str, *options: str) -> Callable[..., list[str]]:
    """Return a way that runs a script of slurm/ until its job ends; `options` are sbatch's."""

    def way(cluster: Cluster, nodes: int, *flags: str) -> list[str]:
        folder = flags[flags.index("--logs-dir") + 1] if "--logs-dir" in flags else "."
        own = [*options, "--nodes", str(nodes), f"--output={folder}/job.out"]
        return [*SBATCH, *own, str(CHECKOUT / "slurm" / script), *flags]

    return way


def by_hand(
    cluster: Cluster, nodes: int, folder: Path, *more: str, address: str = "10.10.1.1"
) -> list[float]:
    """Run one command on each node, as in the courses; `address` is rank 0's."""
    where = ["--master-ip", address, "--master-port", "6585", "--world-size", str(nodes)]
    flags = [*SHORT, "--logs-dir", str(folder), "--run-id", "by-hand", *where, *more]
    on_node = [sys.executable, TESTBED, "exec"]
    worker = [interpreter(), "-m", "train.worker"]
    workers = [
        start(cluster, [*on_node, f"node{rank}", "--", *worker, *flags, "--rank", str(rank)])
        for rank in range(nodes)
    ]
    for one in workers:
        code, _, err = finish(one)
        assert code == 0, err
    return losses(folder / "by-hand")


WAYS = {"ssh": ssh, "slurm": slurm, "sbatch": sbatch("multinode.sh")}


class Trainer:
    """This repository's trainer, with flags of its own, as the program of a run.

    It needs a Python that `paced_python` has made.
    """

    output = "*/metrics/rank_0000[0-3].jsonl"
    output_bytes = 2000
    step = b'"kind": "step"'  # in its output once a step is done
    checkout = CHECKOUT
    task = "paced"

    def __init__(self, *own: str) -> None:
        self._own = own

    def words(self, folder: Path) -> list[str]:
        return ["--task", self.task, *OF_TASK, "--epochs", "1000000", *self._own]

    def working_folder(self, folder: Path) -> Path:
        """Return the folder in which the command is given."""
        return self.checkout


class Script(Trainer):
    """A user's script that does not use Muster, in a folder of its own."""

    file = "steps.py"
    output = "*/workers/rank_0000[0-3].out"
    output_bytes = 100
    step = b": step "

    def words(self, folder: Path) -> list[str]:
        return ["--", "train.py", str(folder), *self._own]

    def working_folder(self, folder: Path) -> Path:
        project = folder.parent / "project"  # beside the runs, so that a snapshot has none of them
        project.mkdir(exist_ok=True)
        (project / "train.py").write_text((PROGRAMS / self.file).read_text())
        return project


class SavingScript(Script):
    """A user's loop that saves checkpoints and records with Muster's library."""

    file = "saves.py"
    output = Trainer.output
    output_bytes = Trainer.output_bytes
    step = Trainer.step


class Sleeps(Trainer):
    """Workers that print nothing: the run has begun when its agents have."""

    output = "*/agents/node_?????.json"
    output_bytes = 10

    def words(self, folder: Path) -> list[str]:
        return ENDLESS


class Command:
    """A run's command as a user gives it, and what it prints."""

    def __init__(
        self,
        cluster: Cluster,
        way: Callable[..., list[str]],
        folder: Path,
        *more: str,
        program: Trainer,
        nodes: int,
    ) -> None:
        self.cluster, self.folder, self._program = cluster, folder, program
        folder.mkdir(exist_ok=True)
        flags = ["--logs-dir", str(folder), *more, *self._program.words(folder)]
        # Files, because the output of several attempts would fill a pipe that nobody reads.
        with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
            self.process = subprocess.Popen(
                way(cluster, nodes, *flags),
                cwd=self._program.working_folder(folder),
                env=environment(cluster),
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, stdout and stderr."""
        code = self.process.wait(300)
        return code, (self.folder / "out").read_text(), (self.folder / "err").read_text()

    def printed(self) -> str:
        """Return everything that the user sees, whether on the terminal or in a file."""
        files = [self.folder / name for name in ("out", "job.out", "err")]
        return "".join(file.read_text() for file in files if file.exists())


class Run(Command):
    """A run that trains without end, for tests that do something terrible to it."""

    def __init__(
        self,
        cluster: Cluster,
        way: Callable[..., list[str]],
        folder: Path,
        *more: str,
        program: Trainer | None = None,
        nodes: int = 4,
    ) -> None:
        super().__init__(cluster, way, folder, *more, program=program or Trainer(), nodes=nodes)
        self._ranks = nodes
        wait_until(lambda: self._all_train() or self.is_over())
        assert self._all_train(), self.printed()
        self.run_dir = only_run(folder)

    def _all_train(self) -> bool:
        files = self.outputs()
        enough = self._program.output_bytes
        return len(files) == self._ranks and all(path.stat().st_size > enough for path in files)

    def agent(self, node: int) -> psutil.Process:
        return psutil.Process(read_json(self.run_dir / f"agents/node_{node:05d}.json")["pid"])

    def hosts(self) -> list[str]:
        """Return the nodes' hosts in order; none while an attempt's records are being moved."""
        try:
            return [read_json(path)["host"] for path in self._agents()]
        except FileNotFoundError:
            return []

    def _agents(self) -> list[Path]:
        return sorted(self.run_dir.glob("agents/node_?????.json"))

    def torchrun(self, node: int) -> psutil.Process:
        (child,) = self.agent(node).children()
        return child

    def worker(self, node: int) -> psutil.Process:
        """Return the node's only worker, whatever has started it."""
        for process in self.agent(node).children(recursive=True):
            if process_tree.rank_of(process) is not None:
                return process
        raise AssertionError(f"no worker on node {node}")

    def outputs(self) -> list[Path]:
        """Return the files in which each rank's steps appear, for the current attempt."""
        return list(self.folder.glob(self._program.output))

    def ends(self) -> None:
        """Wait until nothing of the run is left anywhere."""
        wait_until(lambda: self.left() == [])

    def left(self) -> list[str]:
        """Return command lines of the run's processes on all nodes, which share one kernel."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = " ".join(process.info["cmdline"] or [])
            named = self.run_dir.name in words or str(self.folder) in words
            mine = named and not words.startswith("srun ") and LEADER not in words
            if mine and any(mark in words for mark in MARKS):
                found.append(words[:200])
        return found + [f"agent {pid}" for pid in self._agents_alive()]

    def _agents_alive(self) -> list[int]:
        records = [read_json(path) for path in self._agents()]
        return [one["pid"] for one in records if is_alive(one)]

    def exit(self) -> dict[str, Any]:
        """Wait until the run has recorded its end; return the record."""
        path = self.run_dir / "exit.json"
        wait_until(path.exists)
        return read_json(path)


def is_alive(record: dict[str, Any]) -> bool:
    """Whether the process that has written `record` about itself is alive."""
    with suppress(psutil.Error):
        process = psutil.Process(record["pid"])
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return is_same_process(process.pid, record) and not is_zombie
    return False


def steps_of(cluster: Cluster, job_id: str) -> list[str]:
    argv = ["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%j"]
    return cluster.run(*argv).stdout.split()


def running_job(cluster: Cluster) -> str:
    """Return the ID of the only running job; an ended job may stay in the queue for a while."""
    asked = ("squeue", "--noheader", "--states=running", "--format=%A")
    (job,) = cluster.run(*asked).stdout.split()
    return job


def wait_for_requeue(cluster: Cluster, job: str) -> None:
    """Wait until Slurm has requeued a job."""
    show = ("scontrol", "show", "job", "--oneliner", job)
    wait_until(lambda: " Restarts=1 " in cluster.run(*show).stdout)


def cancel_all(cluster: Cluster) -> None:
    """Leave no job behind: the next test has the testbed to itself."""
    cluster.run("scancel", "--user", "root")
    wait_until(lambda: not cluster.run("squeue", "--noheader").stdout.strip())
