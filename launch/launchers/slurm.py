"""Submit the run to Slurm through submitit; each of the job's tasks is then one agent."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from configs.plugins import REPOSITORY
from configs.settings.launch import LaunchConfig, Settings, SlurmConfig
from launch.checks.examination import Examination, examination, look
from launch.checks.findings import Findings
from launch.launchers.base import Launcher
from launch.nodes import interpreter
from launch.slurm import batch, job_files, node_survey, partitions
from launch.slurm.allocation import scrubbed
from launch.slurm.job_state import Watcher
from launch.slurm.run_watcher import SlurmRunWatcher
from launch.slurm.submitted_job import SlurmJob
from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand, NodeFacts, NodeSpec, Program
from launch.starters.base import starter_of
from muster.errors import UsageError, refuse
from muster.run_files import SUBMITIT

DEFAULT_TIME = "60"
NOTICE_S = 90  # before the time limit
CORES = frozenset({"cpus_per_task", "cpus_per_gpu"})  # of which one says how many there are


class Slurm(Launcher):
    """A Slurm cluster, asked from one of its login nodes or from within a job."""

    takes_snapshot = True
    restarts_jobs = True  # slurm/job.sh does, inside the job

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._config = settings.launch
        self._slurm = settings.slurm
        self._env = _environment(settings.slurm)

    @classmethod
    def suits(cls, config: LaunchConfig) -> int:
        return 2 if partitions.is_login_node() else 0

    @classmethod
    def watcher(cls) -> SlurmRunWatcher:
        return SlurmRunWatcher()

    def problems(self) -> Iterator[str]:
        nodes = self._config.nodes or 1
        if self._config.least_nodes < nodes:
            yield f"--nodes {nodes}: Slurm gives a fixed number of nodes; ask for one number"
        asked = (self._slurm.gpus_per_node or "").rpartition(":")[2]
        counts = [int(count) for count in self._config.nproc("gpu") if count != "gpu"]
        if asked.isdigit() and max(counts, default=0) > int(asked):
            yield (
                f"--nproc-per-node {self._config.nproc_per_node}, but --gpus-per-node "
                f"{self._slurm.gpus_per_node}: each worker has a GPU of its own; make them equal"
            )

    def probe(self) -> Facts:
        if self._config.hosts is not None:
            raise UsageError("--hosts is for --launcher ssh; here --nodelist chooses nodes")
        clusters = self._env.get("SLURM_CLUSTERS", "")
        if "," in clusters:
            raise UsageError(
                f"SLURM_CLUSTERS is {clusters}; name one cluster, so that the job is found again"
            )
        if self._config.preflight:
            found = partitions.partitions(self._env)
            asked = replace(
                self._slurm, partition=self._slurm.partition or self._env.get("SBATCH_PARTITION")
            )
            refuse(partitions.problems(self._config, asked, found))
        facts = self._facts(interpreter.python())
        if self._config.preflight:
            self._refuse_what_slurm_refuses(facts)
        return facts

    def assume(self) -> Facts:
        return self._facts(interpreter.python())

    def check_nodes(self, facts: Facts) -> Examination:
        # Slurm itself would let one wait for what never comes, and then call the nodes busy.
        found = partitions.partitions(os.environ)
        if problems := list(partitions.problems(self._config, self._slurm, found)):
            return examination(Findings(self.name, ()), problems)

        transport = node_survey.transport(len(facts.nodes), self._slurm, os.environ)
        choose = partial(node_survey.choose, network=self._config.network)
        port, python = self._config.master_port, interpreter.python()
        return look(transport, self.name, choose, port, python=python)

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        command = shlex.join(["bash", "slurm/job.sh", *_job_arguments(spec, facts)])
        lines = [_script(self._options(spec, facts), command), "", "# which runs, on each node:"]
        return "\n".join([*lines, super().show(spec, facts)])

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> SlurmJob:
        import submitit

        job = {
            "nproc": [node.nproc for node in facts.nodes],
            "network": self._config.network,
            "master_port": self._config.master_port,
        }
        job_files.write_spec(spec, job)
        python = facts.nodes[0].python
        executor = submitit.SlurmExecutor(SUBMITIT.path(spec.run_dir), python=shlex.quote(python))
        executor.update_parameters(
            use_srun=False,  # slurm/job.sh does it, as often as the run is started again
            setup=["trap : TERM  # the tasks end in order; what follows srun is still to be done"],
            additional_parameters=self._options(spec, facts),
        )
        cluster = partitions.name(self._env)
        with _environment_is(self._env):
            submitted = executor.submit(batch.become_job, python, _job_arguments(spec, facts))
        watcher = Watcher(self._env)
        return SlurmJob(submitted.job_id, cluster, spec, watcher, wait=self._slurm.wait)

    def _facts(self, python: str) -> Facts:
        has_gpus = self._slurm.gpus_per_node or self._slurm.gres
        counts = self._config.nproc("gpu" if has_gpus else 1)
        starter = starter_of(self._config.workers)
        if not starter.counts_gpus:
            counts = tuple(self._gpus_asked_for() if one == "gpu" else one for one in counts)
        if not starter.one_per_node and len(set(counts)) > 1:
            raise UsageError(
                f"--workers {self._config.workers} is as many tasks on each node, but "
                f"--nproc-per-node is {self._config.nproc_per_node}; use --workers torchrun"
            )
        nodes = tuple(
            NodeFacts(NodeSpec(name, nproc), name, python, str(REPOSITORY), nproc)
            for name, nproc in ((f"node{index}", nproc) for index, nproc in enumerate(counts))
        )
        return Facts(nodes, DECIDED, self._config.master_port, self._config.network)

    def _gpus_asked_for(self) -> int:
        """Of each node: without torchrun there, tasks are counted before the job starts."""
        asked = self._slurm.gpus_per_node or self._slurm.gres or ""
        count = asked.rpartition(":")[2]
        if not count.isdigit():
            raise UsageError(
                f"--workers {self._config.workers} needs a number of workers: --nproc-per-node 4, "
                "or --gpus-per-node 4"
            )
        return int(count)

    def _options(self, spec: LaunchSpec, facts: Facts) -> dict[str, str | int | bool]:
        """sbatch's, by their names; the user's own come last."""
        config = self._slurm
        own = {
            name: getattr(config, name)
            for name in ("partition", "account", "qos", "constraint", "nodelist", "exclude", "gres",
                         "mem", "gpus_per_node", "reservation")
            if getattr(config, name) is not None
        }  # fmt: skip
        per_node = starter_of(spec.workers).one_per_node
        cores = config.cpus_per_task or self._cores(spec, facts)
        limit_s = 60 * partitions.minutes(config.time or DEFAULT_TIME)
        # not so early that the tasks of a short job are told before they can hear it
        notice_s = int(min(NOTICE_S, limit_s / 4))
        return {
            "job_name": f"muster-{spec.run_id}",
            "nodes": len(facts.nodes),
            "ntasks_per_node": 1 if per_node else int(facts.nodes[0].nproc),
            "signal": f"USR2@{notice_s}",
            "time": config.time or DEFAULT_TIME,
            "requeue": True,  # after a node failure, or when its time is up
            "chdir": str(REPOSITORY),
            **({"cpus_per_task": cores} if cores else {}),
            **own,
            **config.more,
        }

    def _cores(self, spec: LaunchSpec, facts: Facts) -> int | None:
        """One for each worker of a node; None where that is for others to say, as with GPUs."""
        counts = [node.nproc for node in facts.nodes]
        asked = CORES & self._slurm.more.keys() or any(
            f"SBATCH_{name.upper()}" in self._env for name in CORES
        )
        per_node = starter_of(spec.workers).one_per_node
        if not per_node or asked or self._slurm.gpus_per_node or self._slurm.gres:
            return None
        return max((int(count) for count in counts if count != "gpu"), default=None)

    def _refuse_what_slurm_refuses(self, facts: Facts) -> None:
        """Let Slurm itself look at the job, before anything is made.

        Raises:
            UsageError: it would not take it; in its own words.
        """
        with tempfile.TemporaryDirectory() as folder:
            program = Program.module("train.worker")
            spec = LaunchSpec("test", Path(folder), program, workers=self._config.workers)
            script = Path(folder) / "test.sh"
            script.write_text(_script(self._options(spec, facts), "true"), encoding="utf-8")
            asked = partitions.ask(["sbatch", "--test-only", str(script)], self._env)
        if asked.returncode:
            lines = [line.rpartition("error: ")[2] for line in asked.stderr.splitlines()]
            refuse((line for line in lines if line), "Slurm would not take this job: ")
            raise UsageError("Slurm would not take this job, and gives no reason")


def _job_arguments(spec: LaunchSpec, facts: Facts) -> list[str]:
    """The run folder, and how srun spreads a step over the nodes of the job."""
    nodes = len(facts.nodes)
    per_node = 1 if starter_of(spec.workers).one_per_node else int(facts.nodes[0].nproc)
    tasks = [f"--ntasks={nodes * per_node}", f"--ntasks-per-node={per_node}"]
    return [str(spec.run_dir), f"--nodes={nodes}", *tasks]


def _script(options: Mapping[str, str | int | bool], command: str) -> str:
    """The batch script with these options of sbatch, as submitit writes it."""
    lines = []
    for name, value in sorted(options.items()):
        words = "" if value is True else f"={shlex.quote(str(value))}"
        lines.append(f"#SBATCH --{name.replace('_', '-')}{words}")
    return "\n".join(["#!/bin/bash", *lines, "", command])


def _environment(slurm: SlurmConfig) -> dict[str, str]:
    """What Slurm's commands see: not a job that we are in, nor defaults for what flags say."""
    flags = {name for name, value in vars(slurm).items() if value is not None and name != "slurm"}
    env = scrubbed(os.environ, flags | slurm.more.keys())
    cluster = slurm.more.get("clusters") or env.get("SBATCH_CLUSTERS")
    return (
        {**env, "SLURM_CLUSTERS": cluster} if cluster else env
    )  # for all of them, not sbatch alone


@contextmanager
def _environment_is(env: Mapping[str, str]) -> Iterator[None]:
    """submitit has sbatch see the environment of this process."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


build = Slurm
