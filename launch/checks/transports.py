"""How one talks with all nodes of a run: through ssh, one step of srun, or processes here."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from configs.settings.launch import SlurmConfig, SshConfig
from launch.slurm.allocation import scrubbed
from launch.spec import NodeSpec
from launch.ssh import openssh

# What follows is as long as the first line says; what comes after that is for the guest itself.
LOAD = (
    "import sys; size = int(sys.stdin.buffer.readline());"
    " exec(compile(sys.stdin.buffer.read(size), 'guest', 'exec'))"
)
NODE_VARIABLE = "SLURM_NODEID"  # in which srun tells a task its node
PATIENCE_S = 60  # of srun, for nodes that are busy
OPTIONS = (
    "partition",
    "account",
    "qos",
    "constraint",
    "reservation",
    "nodelist",
    "exclude",
    "gpus_per_node",
    "gres",
    "cpus_per_task",
    "mem",
)
BATCH_ONLY = frozenset(
    "array chdir error export open_mode output parsable requeue no_requeue signal wrap".split()
)


@dataclass(frozen=True)
class Transport:
    """Commands that start a guest on each of `count` nodes.

    There are as many commands as nodes, or one that starts them all.
    """

    launcher: str
    count: int
    commands: tuple[tuple[str, ...], ...]
    explain: Callable[[int, str], str]  # why node `index` did not answer, given what was said
    env: Mapping[str, str] | None = field(default=None)  # None: as it is here


def through_ssh(specs: Sequence[NodeSpec], config: SshConfig) -> Transport:
    """A session on each node."""

    def explain(index: int, error_text: str) -> str:
        if "python3" in error_text and "not found" in error_text:
            name = specs[index].name
            return f"{name}: has no python3; there: sudo apt-get install python3 python3-venv"
        return openssh.explain(specs[index], error_text)

    commands = tuple(
        tuple(openssh.command(spec, config, ["python3", "-c", LOAD, str(index)], index))
        for index, spec in enumerate(specs)
    )
    return Transport("ssh", len(specs), commands, explain)


def through_slurm(count: int, config: SlurmConfig, env: Mapping[str, str]) -> Transport:
    """One step: in the job that this process is in, if it is in one, else in one of its own."""
    inside = "SLURM_JOB_ID" in env
    asked = {name: getattr(config, name) for name in OPTIONS}
    asked |= {name: value for name, value in config.more.items() if name not in BATCH_ONLY}
    own = [f"--immediate={PATIENCE_S}", "--time=2", "--job-name=muster-doctor"]
    own += [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value]
    argv = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--quiet"]
    argv += ["--overlap"] if inside else own
    argv += ["python3", "-c", LOAD, NODE_VARIABLE]

    def explain(index: int, error_text: str) -> str:
        lines = error_text.splitlines()
        lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in lines]
        why = lines[0] if lines else "without a word"
        return f"srun failed: {why}; see sinfo and squeue, or take fewer --nodes"

    return Transport("slurm", count, (tuple(argv),), explain, env if inside else scrubbed(env))


def here(count: int) -> Transport:
    """As many processes of this machine as nodes are pretended."""

    def explain(index: int, error_text: str) -> str:
        lines = error_text.strip().splitlines()
        return f"node{index}: python failed: {lines[-1] if lines else 'without a word'}; see above"

    commands = tuple((sys.executable, "-c", LOAD, str(index)) for index in range(count))
    return Transport("local", count, commands, explain)
