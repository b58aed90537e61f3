"""Submit the run to Slurm through submitit; each of the job's tasks is then one agent."""

import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.plugins import REPOSITORY
from configs.settings.launch import Settings, SlurmConfig
from launch import interpreter, planning
from launch.runs import run_record
from launch.runs.log_tail import Follower
from launch.slurm import job_files, partitions
from launch.slurm.allocation import scrubbed
from launch.slurm.job_state import FORGOTTEN, UNKNOWN, JobState, Watcher
from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand, NodeFacts, NodeSpec
from muster.errors import UsageError, refuse
from muster.run_files import SUBMITIT

DEFAULT_TIME = "60"
POLL_S = 1.0
NOTICE_S = 90  # before the time limit
CORES = frozenset({"cpus_per_task", "cpus_per_gpu"})  # of which one says how many there are


class Slurm:
    """A Slurm cluster, asked from one of its login nodes or from within a job."""

    def __init__(self, settings: Settings) -> None:
        self._config = settings.launch
        self._slurm = settings.slurm
        self._env = _environment(settings.slurm)

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
            wished = replace(
                self._slurm, partition=self._slurm.partition or self._env.get("SBATCH_PARTITION")
            )
            refuse(partitions.problems(self._config, wished, found))
        facts = self._facts(interpreter.python())
        if self._config.preflight:
            self._refuse_what_slurm_refuses(facts)
        return facts

    def assume(self) -> Facts:
        return self._facts(interpreter.python())

    def plan(self, spec: LaunchSpec, facts: Facts) -> list[NodeCommand]:
        return planning.commands(spec, facts)

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        script = self._executor(spec, facts)._make_submission_file_text(
            "python -m submitit.core._submit ...", spec.run_id
        )
        lines = [command.line() for command in self.plan(spec, facts)]
        return "\n".join([script.strip(), "", "# which runs, on each node:", *lines])

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> "SlurmJob":
        from launch.slurm.task import act_for_submitit

        job_files.write_spec(
            spec,
            nproc=[node.nproc for node in facts.nodes],
            network=self._config.network,
            master_port=self._config.master_port,
        )
        executor = self._executor(spec, facts)
        cluster = partitions.name(self._env)
        with _environment_is(self._env):
            job = executor.submit(act_for_submitit, str(spec.run_dir))
        return SlurmJob(job.job_id, cluster, spec, Watcher(self._env), wait=self._slurm.wait)

    def _facts(self, python: str) -> Facts:
        has_gpus = self._slurm.gpus_per_node or self._slurm.gres
        counts = self._config.nproc("gpu" if has_gpus else 1)
        if self._config.workers != "torchrun":
            counts = tuple(self._gpus_asked_for() if one == "gpu" else one for one in counts)
        if self._config.workers == "manual" and len(set(counts)) > 1:
            raise UsageError(
                f"--workers manual is as many tasks on each node, but --nproc-per-node is "
                f"{self._config.nproc_per_node}; use --workers torchrun"
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

    def _executor(self, spec: LaunchSpec, facts: Facts) -> Any:
        import submitit

        class Executor(submitit.SlurmExecutor):
            @classmethod
            def affinity(cls) -> int:
                return 2  # a dry run is for every machine; without sbatch, probe has said so

        python = facts.nodes[0].python
        quoted, folder = shlex.quote(python), shlex.quote(str(spec.run_dir))
        executor = Executor(SUBMITIT.path(spec.run_dir), python=quoted)
        config = self._slurm
        own = {
            name: getattr(config, name)
            for name in ("partition", "account", "qos", "constraint", "nodelist", "exclude", "gres",
                         "mem", "gpus_per_node", "reservation")
            if getattr(config, name) is not None
        }  # fmt: skip
        cores = config.cpus_per_task or self._cores(spec, facts)
        limit_s = 60 * partitions.minutes(config.time or DEFAULT_TIME)
        executor.update_parameters(
            job_name=f"muster-{spec.run_id}",
            nodes=len(facts.nodes),
            ntasks_per_node=int(facts.nodes[0].nproc) if spec.workers == "manual" else 1,
            # not so early that the tasks of a short job are told before they can hear it
            signal_delay_s=int(min(NOTICE_S, limit_s / 4)),
            # srun of Slurm 22.05 and 23.02 does not take the cores from the job by itself
            srun_args=[
                "--kill-on-bad-exit=1",
                "--wait=60",
                *([f"--cpus-per-task={cores}"] if cores else []),
            ],
            setup=[
                "trap : TERM  # the tasks end in order; what follows srun is still to be done",
                f"{quoted} -m launch.slurm.batch head {folder} || exit $?",
            ],
            teardown=[f"{quoted} -m launch.slurm.batch end {folder} $?"],
            additional_parameters={
                "time": config.time or DEFAULT_TIME,
                "requeue": True,  # after a node failure, or when its time is up
                "chdir": str(REPOSITORY),
                **({"cpus_per_task": cores} if cores else {}),
                **own,
                **config.more,
            },
        )
        return executor

    def _cores(self, spec: LaunchSpec, facts: Facts) -> int | None:
        """One for each worker of a node; None where that is for others to say, as with GPUs."""
        counts = [node.nproc for node in facts.nodes]
        asked = CORES & self._slurm.more.keys() or any(
            f"SBATCH_{name.upper()}" in self._env for name in CORES
        )
        if spec.workers == "manual" or asked or self._slurm.gpus_per_node or self._slurm.gres:
            return None
        return max((int(count) for count in counts if count != "gpu"), default=None)

    def _refuse_what_slurm_refuses(self, facts: Facts) -> None:
        """Let Slurm itself look at the job, before anything is made.

        Raises:
            UsageError: it would not take it; in its own words.
        """
        with tempfile.TemporaryDirectory() as folder:
            spec = LaunchSpec("test", Path(folder), (), workers=self._config.workers)
            script = Path(folder) / "test.sh"
            text = self._executor(spec, facts)._make_submission_file_text("true", "test")
            script.write_text(text, encoding="utf-8")
            asked = partitions.ask(["sbatch", "--test-only", str(script)], self._env)
        if asked.returncode:
            lines = [line.rpartition("error: ")[2] for line in asked.stderr.splitlines()]
            refuse((line for line in lines if line), "Slurm would not take this job: ")
            raise UsageError("Slurm would not take this job, and gives no reason")


class SlurmJob:
    """A job in Slurm's hands."""

    shown = b""
    trouble: str | None = None
    signals: Sequence[int] = ()

    def __init__(
        self, job_id: str, cluster: str, spec: LaunchSpec, watcher: Watcher, *, wait: bool
    ) -> None:
        self.job_id = job_id
        self.cluster = cluster
        self.detached = not wait
        self._spec = spec
        self._watcher = watcher
        self._follower = Follower(spec.run_dir, prefixes=True)

    def wait(self) -> int:
        """0 if the job succeeded, else its exit code; what workers print is shown meanwhile.

        Raises:
            KeyboardInterrupt: after saying that the job goes on without being watched.
        """
        try:
            state = self._watch()
        except KeyboardInterrupt:
            cancel = f"python launch/jobs.py cancel {self._spec.run_id}"
            print(f"\njob {self.job_id} goes on; to end it: {cancel}", file=sys.stderr)
            raise
        ended = run_record.read_end(self._spec.run_dir)
        if ended is None and state.name == FORGOTTEN:
            self.trouble = f"Slurm has forgotten job {self.job_id}, and nothing says how it ended"
            return 1
        if ended is None:
            self.trouble = f"Slurm says {state.name} of job {self.job_id}"
            return 0 if state.name == "COMPLETED" else 1
        return int(ended["code"])

    def _watch(self) -> JobState:
        """The state in which the job ended; while Slurm does not answer, it has not."""
        shown = ""
        while True:
            state = self._watcher.state(self.job_id, run_record.signs(self._spec.run_dir))
            if state.name != shown and not self._spec.quiet:
                more = f"; {state.reason}" if state.name == UNKNOWN else ""
                print(f"job {self.job_id}: {state.name.lower()}{more}", flush=True)
                shown = state.name
            self._follower.nodes = run_record.nodes_of_ranks(self._spec.run_dir)
            self._follower.poll()
            if state.is_over:
                self._follower.poll(last=True)
                return state
            time.sleep(POLL_S)


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
