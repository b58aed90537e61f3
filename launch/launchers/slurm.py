"""Submit the run to Slurm through submitit, or lead it in the job that this process is in."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from configs.settings.launch import ONE_PER_GPU, ONE_WORKER
from configs.settings.remote import Settings, SlurmConfig, SshConfig
from launch.checks.examination import examination, look
from launch.checks.findings import Findings, Row
from launch.deadlines import SLURM_ANSWERS_WHO_WAITS_S
from launch.in_job import run_job
from launch.in_job.job_nodes import JobNodes
from launch.launchers.base import Launcher
from launch.programs.command_line import setting_names
from launch.programs.python_choice import say_once
from launch.runs import node_history
from launch.runs.run_state import Submission
from launch.slurm import batch_script, controller, node_survey
from launch.slurm.current_job import CurrentJob, current_job, srun_environment
from launch.slurm.run_watcher import SlurmRunWatcher
from launch.spec import PLACEHOLDER, Facts, LaunchSpec, NodeFacts, NodeSpec
from muster import extras
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from muster.run_files import SUBMITIT

# The names that submitit gives to the output of a job, and to that of an array's parts.
OUTPUT = "%j_0_log.out"
OUTPUT_OF_PART = "%A_%a_0_log.out"
SUBMITIT_PATTERNS = ("%j", "%t", "%A", "%a")


class Slurm(Launcher):
    """A Slurm cluster, asked from one of its login nodes or from within a job."""

    takes_snapshot = True
    unused = setting_names(SshConfig) - {"setup"} | {"hosts"}  # --slurm nodelist=... chooses nodes
    waits_for_nodes = False  # a job does not get a lost node back
    has_arrays = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._env = batch_script.environment(settings.slurm)

    @cached_property
    def _current(self) -> CurrentJob | None:
        """The job of this process, if any: the run uses its nodes, and no other job is queued."""
        return current_job(os.environ)

    @cached_property
    def _request(self) -> SlurmConfig:
        """The settings of the request to Slurm, with node names in place of --exclude auto."""
        if self._slurm.exclude is None:
            return self._slurm
        cluster = partial(controller.name, self._env)
        return replace(self._slurm, exclude=node_history.excluded(self._slurm.exclude, cluster))

    @classmethod
    def is_login_node(cls) -> bool:
        return controller.belongs_to_cluster(shutil.which("sbatch"))

    @classmethod
    def watcher(cls) -> SlurmRunWatcher:
        return SlurmRunWatcher()

    def problems(self) -> Iterator[str]:
        if self._config.least_nodes < (self._config.most_nodes or 1):
            nodes = self._config.nodes
            yield f"--nodes {nodes}: a Slurm job has a fixed number of nodes\ntip: give one number"
        if self._current is not None:
            yield from self._current.refused(self._config, self._slurm)
        workers = self._config.nproc_per_node or ()
        if self._gpus and max((each.number or 0 for each in workers), default=0) > self._gpus:
            yield (
                f"--nproc-per-node {','.join(map(str, workers))}, but each node has {self._gpus} "
                "GPUs, and each worker needs one of its own"
                "\ntip: start no more workers than GPUs"
            )

    def probe(self) -> Facts:
        if self._current is not None:
            return self.assume()
        controller.refuse_missing("sbatch")
        clusters = self._env.get("SLURM_CLUSTERS", "")
        if "," in clusters:
            raise UsageError(
                f"SLURM_CLUSTERS is {clusters}"
                "\ntip: set it to one cluster, so that the job can be found again"
            )
        for line in batch_script.notes(os.environ):
            say_once(line)
        facts = self.assume()
        if self.checks_nodes:
            batch_script.refuse_what_slurm_refuses(self._request, self._env, facts)
        return facts

    def assume(self) -> Facts:
        python = batch_script.python()
        of_job = self._current.nodes if self._current else []
        count = self._config.most_nodes or len(of_job) if of_job else None
        default = ONE_PER_GPU if self._gpus else ONE_WORKER
        counts = self._config.nproc(default, count)
        hosts = of_job or [f"node{index}" for index in range(len(counts))]
        nodes = tuple(
            NodeFacts(NodeSpec(host, nproc), host, python, str(CHECKOUT), nproc)
            for host, nproc in zip(hosts, counts, strict=False)
        )
        return Facts(nodes, PLACEHOLDER, self._config.master_port, self._config.network)

    def check_nodes(self, facts: Facts, disks: Mapping[str, Path]) -> list[Row]:
        if self._current is None:
            controller.refuse_missing("sbatch")
            # Slurm would queue the check for nodes that never become free, and report them as busy.
            try:
                batch_script.refuse_what_slurm_refuses(self._request, self._env, facts)
            except UsageError as error:
                return examination(Findings(self.name, (), str(error).splitlines()))
        transport = node_survey.transport(len(facts.nodes), self._slurm, os.environ)
        choose = partial(node_survey.choose, network=self._config.network)
        python = batch_script.python()
        # the step that asks gets other cores than the run's own job would get
        planned = facts.nodes if self._current is not None else ()
        return look(
            transport,
            self.name,
            choose,
            self.workers_python,
            python=python,
            disks=disks,
            planned=planned,
        )

    def show(self, spec: LaunchSpec, facts: Facts) -> str:
        nodes = ["", "# which runs, on each node:", super().show(spec, facts)]
        if self._current is not None:
            return "\n".join([f"# {self._current.usage_line(len(facts.nodes))}", *nodes])
        script = self._script(spec.run_id, [spec], facts, job_folder(spec.run_dir))
        return "\n".join([script, *nodes])

    @property
    def submits(self) -> bool:
        return self._current is None

    def submit(self, spec: LaunchSpec, facts: Facts) -> Submission:
        folder = job_folder(spec.run_dir)
        (job_id,), cluster = self.submit_array(spec.run_id, [spec], facts, folder)
        watcher = SlurmRunWatcher(self._env, SLURM_ANSWERS_WHO_WAITS_S, cluster)
        return Submission(job_id, cluster, watcher)

    def most_in_array(self) -> int:
        return int(controller.configured("MaxArraySize", self._env))

    def job_folder(self, parent: Path) -> Path:
        return job_folder(parent)

    def submit_array(
        self,
        name: str,
        specs: Sequence[LaunchSpec],
        facts: Facts,
        folder: Path,
        at_once: int = 1,
    ) -> tuple[list[str], str]:
        """See the contract; `folder` also receives the batch script."""
        try:  # imported here, since a dry run needs no submitit
            from launch.slurm import submitit_jobs
        except ModuleNotFoundError as error:
            raise UsageError(extras.explained(error) or str(error)) from None
        for spec in specs:
            run_job.write_spec(spec, {**self._job(facts), "output": f"{folder}/"})
        # submitit does not read the cluster in "Submitted batch job 12 on cluster b"
        cluster = controller.name(self._env)
        script = self._script(name, specs, facts, folder, at_once)
        job_id = submitit_jobs.submit(folder, script, self._env)
        parts = [f"{job_id}_{part}" for part in range(len(specs))]
        return parts if len(specs) > 1 else [job_id], cluster

    def _job(self, facts: Facts) -> dict[str, object]:
        return {
            "nproc": [node.nproc.to_json() for node in facts.nodes],
            "network": self._config.network,
            "master_port": self._config.master_port,
            "exclude": self._slurm.exclude,
        }

    def pool_of(self, spec: LaunchSpec, facts: Facts) -> JobNodes:
        """The nodes for the run, in a job that continues after the run."""
        current = self._current
        assert current is not None  # otherwise this launcher submits
        count = len(facts.nodes)
        job = {**self._job(facts), "step": f"muster-{spec.run_id}", "output": current.output}
        run_job.write_spec(spec, job)
        if not spec.quiet:
            print(current.usage_line(count), flush=True)
            for line in current.notes(self._config):
                say_once(line)
        return JobNodes(
            replace(current, cluster=controller.name(self._env), env=srun_environment(os.environ)),
            job,
            facts.nodes[0].python,
            count if self._config.nodes is None else spec.least_nodes,
        )

    @property
    def _gpus(self) -> int:
        """The number of GPUs that the job has, or will request, on each node."""
        if self._current is not None:
            return self._current.gpus
        return batch_script.gpus_asked(self._slurm, self._env)

    def _script(
        self,
        name: str,
        specs: Sequence[LaunchSpec],
        facts: Facts,
        folder: Path,
        at_once: int = 1,
    ) -> str:
        """The batch script of the job, which prints into `folder`; see `submit_array`."""
        options = batch_script.options(self._request, self._env, name, facts)
        output = OUTPUT if len(specs) == 1 else OUTPUT_OF_PART
        options["output"] = batch_script.file_name(folder, output)
        options["open_mode"] = "append"  # the job may be requeued
        runs = [spec.run_dir for spec in specs]
        return batch_script.leader_script(options, facts.nodes[0].python, runs, at_once)


def job_folder(parent: Path) -> Path:
    """The folder for submitit's files about a job; `parent`: the folder of a run or a submission.

    Raises:
        UsageError: submitit would replace a part of the path with the job's number.
    """
    folder = SUBMITIT.path(parent)
    for pattern in SUBMITIT_PATTERNS:
        if pattern in str(folder):
            raise UsageError(
                f"{parent}: submitit replaces {pattern} in a path with the job's number"
                "\ntip: choose another --logs-dir"
            )
    return folder


build = Slurm
