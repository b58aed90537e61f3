"""The nodes that a launcher would use are examined, whatever it reaches them through."""

import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from configs.settings.launch import Settings, SlurmConfig
from launch.checks.examination import Examination, examination, examine
from launch.checks.findings import Findings
from launch.nodes import interpreter
from launch.nodes.network_choice import Choice, choose
from launch.nodes.survey import LOAD, Probe, Survey, Transport, facts_request, here
from launch.slurm import partitions
from launch.slurm.allocation import scrubbed
from launch.spec import Facts
from launch.ssh import openssh
from muster.errors import UsageError

LOOPBACK = "127.0.0.1"
NODE_VARIABLE = "SLURM_NODEID"  # in which srun tells a task its node
PATIENCE_S = 60  # of srun, for nodes that are busy
# What is asked of sbatch and means the same to srun.
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


def all_nodes(facts: Facts, launcher: str, settings: Settings) -> Examination:
    """Look at the nodes of `facts`, which nobody has asked yet.

    Raises:
        UsageError: how to talk with the nodes of this launcher is not known.
        MusterError: there is no Python to ask them for.
    """
    if launcher not in VISITS:
        known = ", ".join(sorted(VISITS))
        raise UsageError(f"--launcher {launcher}: the doctor knows the way through {known} only")
    return VISITS[launcher](facts, settings)


def through_srun(count: int, config: SlurmConfig, env: Mapping[str, str]) -> Transport:
    """One step: in the job that this process is in, if it is in one, else in one of its own."""
    inside = "SLURM_JOB_ID" in env
    asked = {name: getattr(config, name) for name in OPTIONS}
    asked |= {name: value for name, value in config.more.items() if name not in BATCH_ONLY}
    own = [f"--immediate={PATIENCE_S}", "--time=2", "--job-name=muster-doctor"]
    own += [f"--{name.replace('_', '-')}={value}" for name, value in asked.items() if value]
    argv = ["srun", f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--quiet"]
    argv += ["--overlap"] if inside else own
    argv += ["python3", "-c", LOAD, NODE_VARIABLE]

    def explain(index: int, code: int, error_text: str) -> str:
        lines = error_text.splitlines()
        lines = [line.removeprefix("srun: ").removeprefix("error: ") for line in lines]
        why = lines[0] if lines else "without a word"
        return f"srun failed: {why}; see sinfo and squeue, or take fewer --nodes"

    names = [f"node{index}" for index in range(count)]
    return Transport(names, [argv], explain, env if inside else scrubbed(env))


def _through_ssh(facts: Facts, settings: Settings) -> Examination:
    specs = [node.spec for node in facts.nodes]
    return _look(
        openssh.transport(specs, settings.ssh),
        settings,
        "ssh",
        settings.ssh.remote_dir,
        hosts=[spec.name for spec in specs],
        addresses=[spec.address for spec in specs],
    )


def _through_slurm(facts: Facts, settings: Settings) -> Examination:
    # Slurm itself would let one wait for what never comes, and then call the nodes busy.
    found = partitions.partitions(os.environ)
    problems = list(partitions.problems(settings.launch, settings.slurm, found))
    if problems:
        return examination(Findings("slurm", ()), problems)
    transport = through_srun(len(facts.nodes), settings.slurm, os.environ)
    return _look(transport, settings, "slurm", python=interpreter.python())


def _here(facts: Facts, settings: Settings) -> Examination:
    return _look(here(len(facts.nodes)), settings, "local", python=sys.executable)


def _look(
    transport: Transport,
    settings: Settings,
    launcher: str,
    folder: str | None = None,
    python: str | None = None,
    hosts: Sequence[str] | None = None,
    addresses: Sequence[str | None] | None = None,
) -> Examination:
    """Ask all nodes what they are like, and examine those that answer.

    `hosts` and `addresses` are what one gave for the nodes: Slurm knows them itself.
    """
    port = settings.launch.master_port
    ports = [] if port is None else [port]
    with facts_request(folder, python, ports) as request, Survey(transport) as survey:
        probes, silent = survey.probes(request)

        def chosen() -> Choice:
            if launcher == "local":
                return Choice("127.0.0.0/8", (LOOPBACK,) * len(probes))
            return choose(
                list(probes.values()),
                [hosts[index] if hosts else "" for index in probes],
                [addresses[index] for index in probes]
                if addresses
                else slurm_addresses(list(probes.values())),
                settings.launch.network,
                lambda to: survey.routes(probes, to),
            )

        names = transport.names if launcher == "local" else survey.host_names(probes)
        return examine(
            survey,
            probes,
            [names[index] for index in probes] if launcher == "local" else names,
            launcher,
            chosen,
            master_port=port,
            silent=list(silent.values()),
        )


def slurm_addresses(probes: Sequence[Probe]) -> list[str | None]:
    """The addresses by which Slurm itself reaches these nodes."""
    hosts = [str(one["host"]).partition(".")[0] for one in probes]
    argv = ["scontrol", "show", "node", "--oneliner", ",".join(hosts)]
    found: dict[str, str] = {}
    for line in partitions.ask(argv, os.environ).stdout.splitlines():
        pairs = dict(word.partition("=")[::2] for word in line.split())
        try:
            found[pairs.get("NodeHostName", "")] = socket.gethostbyname(pairs["NodeAddr"])
        except (OSError, KeyError):
            continue
    own = [[interface["address"] for interface in one["interfaces"]] for one in probes]
    addresses = [found.get(host) for host in hosts]
    # Slurm may reach a node at an address that the node does not know itself.
    return [one if one in has else None for one, has in zip(addresses, own, strict=True)]


VISITS: Mapping[str, Callable[[Facts, Settings], Examination]] = {
    "ssh": _through_ssh,
    "slurm": _through_slurm,
    "local": _here,
}
