"""Ask nodes of Slurm through one step of srun, and use the addresses that Slurm knows."""

from collections.abc import Mapping

from configs.settings.remote import SlurmConfig
from launch.deadlines import SLURM_GIVES_DOCTOR_NODES_S
from launch.nodes import network_choice
from launch.nodes.network_choice import Choice
from launch.nodes.survey import LOAD, Probe, Transport
from launch.slurm import batch_script
from launch.slurm.controller import scrubbed

NODE_VARIABLE = "SLURM_NODEID"  # in it srun tells a task its node
# What srun does not know, or what would let the question wait.
NOT_FOR_SRUN = frozenset(
    "batch begin deadline dependency hold ignore_pbs kill_on_invalid_dep mail_type mail_user time"
    " time_min wait_all_nodes".split()
)


def transport(count: int, config: SlurmConfig, env: Mapping[str, str]) -> Transport:
    """One step: in this process's job if there is one, else in a job of its own."""
    inside = "SLURM_JOB_ID" in env
    own = [f"--immediate={SLURM_GIVES_DOCTOR_NODES_S}", "--time=2", "--job-name=muster-doctor"]
    given = batch_script.asked(config)
    own += batch_script.flags({name: given[name] for name in given if name not in NOT_FOR_SRUN})
    argv = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--quiet"]
    argv += ["--overlap"] if inside else own
    argv += ["python3", "-c", LOAD, NODE_VARIABLE]

    def explain(index: int, code: int, error_text: str) -> str:
        lines = error_text.splitlines()
        lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in lines]
        why = lines[0] if lines else "no message"
        return f"srun failed: {why}; see sinfo and squeue, or take fewer --nodes"

    names = [f"node{index}" for index in range(count)]
    return Transport(names, [argv], explain, env if inside else scrubbed(env))


def choose(probes: Mapping[int, Probe], network: str | None) -> Choice:
    """The network that gradients take: where `network` does not say, the one that srun came by."""
    each = list(probes.values())
    hosts = [str(one["host"]).partition(".")[0] for one in each]
    return network_choice.choose(each, hosts, [one["towards_srun"] for one in each], network)
