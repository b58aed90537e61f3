"""Ask Slurm nodes through one srun step, and use the addresses that Slurm knows."""

from collections.abc import Mapping

from configs.settings.remote import SlurmConfig
from launch.deadlines import SLURM_GIVES_DOCTOR_NODES_S
from launch.nodes import network_choice
from launch.nodes.answers import Probe
from launch.nodes.network_choice import Choice
from launch.nodes.survey import LOAD, Transport
from launch.slurm import batch_script
from launch.slurm.controller import scrubbed
from launch.slurm.current_job import CurrentJob

# sbatch options that srun does not have, or that would make the survey wait.
NOT_FOR_SRUN = frozenset(
    "batch begin deadline dependency hold ignore_pbs kill_on_invalid_dep mail_type mail_user time"
    " time_min wait_all_nodes".split()
)


def transport(count: int, config: SlurmConfig, env: Mapping[str, str]) -> Transport:
    """One srun step on `count` nodes: in this process's job, or else in a job of its own."""
    inside = "SLURM_JOB_ID" in env
    own = [f"--immediate={SLURM_GIVES_DOCTOR_NODES_S}", "--time=2", "--job-name=muster-doctor"]
    given = batch_script.user_options(config)
    own += batch_script.flags({name: given[name] for name in given if name not in NOT_FOR_SRUN})
    argv = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--quiet"]
    argv += ["--overlap"] if inside else own
    argv += ["python3", "-c", LOAD, CurrentJob.index_variable]

    def explain(index: int, code: int, error_text: str) -> str:
        lines = error_text.splitlines()
        lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in lines]
        reason = lines[0] if lines else "no message"
        return f"srun failed: {reason}\ntip: check sinfo and squeue, or use fewer --nodes"

    names = [f"node{index}" for index in range(count)]
    env = env if inside else scrubbed(env)
    return Transport(names, [argv], explain, env, job=CurrentJob, means="srun")


def choose(probes: Mapping[int, Probe], network: str | None) -> Choice:
    """The network for gradients: `network`, or else the one that connects each node to srun."""
    answers = list(probes.values())
    hosts = [probe.host.partition(".")[0] for probe in answers]
    towards_origin = [probe.towards_origin for probe in answers]
    return network_choice.choose(answers, hosts, towards_origin, network)
