"""Start the workers on machines that one can log in to: bare metal, no scheduler."""

import getpass
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from configs.plugins import REPOSITORY
from configs.settings.launch import LaunchConfig, Settings
from launch.agent.agent_job import AgentJob
from launch.agent.assignment import assignments_of
from launch.checks.examination import proof, quick
from launch.checks.transports import through_ssh
from launch.launchers.base import Launcher
from launch.nodes import network_choice
from launch.spec import DECIDED, Facts, LaunchSpec, NodeCommand, NodeFacts, NodeSpec
from launch.ssh import hosts, node_report, node_setup, openssh, transfer
from launch.ssh.node_report import Probe
from muster.errors import MusterError, UsageError


class Ssh(Launcher):
    """The machines of a hosts file, a manifest, or a list of names."""

    takes_snapshot = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._config = settings.launch
        self._ssh = settings.ssh

    @classmethod
    def suits(cls, config: LaunchConfig) -> int:
        return 3 if config.hosts is not None else 0

    def problems(self) -> Iterator[str]:
        if self._config.hosts is None:
            yield "--launcher ssh needs --hosts: a hosts file, a CloudLab manifest, or names"

    def probe(self) -> Facts:
        specs, names, probes = self._ask()
        _require_same_environment(names, specs, probes)
        chosen = network_choice.choose(
            probes,
            [spec.host for spec in specs],
            [spec.address for spec in specs],
            self._config.network,
            lambda to: node_report.routes(specs, self._ssh, to),
        )
        if self._config.preflight:
            self._refuse_what_would_fail(specs, probes, chosen)
        return Facts(
            nodes=_facts(specs, names, probes, chosen.addresses),
            master_addr=chosen.addresses[0],
            master_port=self._config.master_port,
            network=chosen.network,
        )

    def set_up(self, say: Callable[[str], None]) -> None:
        """Make the environment on every node.

        Raises:
            MusterError: one line for every node on which it failed.
        """
        specs, names, probes = self._ask()
        nowhere = [None] * len(specs)
        found = _facts(specs, names, probes, nowhere)
        node_setup.make_environments(found, self._ssh, say)

    def assume(self) -> Facts:
        specs = self._specs()
        folder = self._ssh.remote_dir or str(REPOSITORY)
        found = tuple(
            NodeFacts(
                spec,
                f"node{index}",
                f"{folder}/.venv/bin/python",
                folder,
                spec.nproc,
                spec.address,
            )
            for index, spec in enumerate(specs)
        )
        return Facts(found, specs[0].address or DECIDED, self._config.master_port)

    def launch(self, spec: LaunchSpec, facts: Facts, plan: Sequence[NodeCommand]) -> AgentJob:
        if not facts.shared:
            transfer.send_checkout(facts.nodes, self._ssh)

        def start(index: int) -> list[str]:
            node = facts.nodes[index]
            words = ["env", "-C", node.repository, node.python, "-m", "launch.agent"]
            return openssh.command(node.spec, self._ssh, words, index)

        assignments = assignments_of(spec, facts, plan)
        return AgentJob(
            spec.run_dir, assignments, start, REPOSITORY, prefixes=True, quiet=spec.quiet
        )

    def _refuse_what_would_fail(
        self, specs: Sequence[NodeSpec], probes: Sequence[Probe], chosen: network_choice.Choice
    ) -> None:
        """Have every pair of nodes reach each other before a run depends on it.

        Raises:
            MusterError: a line for everything that would make the run fail.
        """
        found = quick(
            through_ssh(specs, self._ssh),
            hosts=[spec.name for spec in specs],
            master_port=self._config.master_port,
            probes=probes,
            chosen=chosen,
        )
        for line in found.warnings:
            print(f"note: {line}", file=sys.stderr)
        if found.problems:
            raise MusterError("\n".join(found.problems))

    def _ask(self) -> tuple[Sequence[NodeSpec], list[str], list[Probe]]:
        """The nodes, what to call them, and what each says of itself."""
        specs: Sequence[NodeSpec] = self._specs()
        with proof() as path:
            request = node_report.request(self._ssh.remote_dir, path, REPOSITORY)
            answers: Sequence[Probe | str] = node_report.ask_all(specs, self._ssh, request)
        least = self._config.least_nodes
        if self._config.nodes is not None and least < len(specs):  # else all of them are wanted
            specs, answers = _answering(specs, answers, least)
        probes = node_report.must_answer(answers)
        return specs, _names(specs, probes), probes

    def _specs(self) -> tuple[NodeSpec, ...]:
        config = self._config
        assert config.hosts is not None
        (slots, *others) = config.nproc(nodes=1)
        if others:
            raise UsageError(
                f"--nproc-per-node {config.nproc_per_node}: over ssh nodes have their number in "
                "the hosts file: node0 slots=2"
            )
        more = {"user": self._ssh.user}
        if _is_file(config.hosts):
            me, network = getpass.getuser(), config.network
            path = Path(config.hosts)
            found = hosts.read_hosts(path, slots, me=me, network=network, **more)
        else:
            found = hosts.parse_hosts([config.hosts], slots, "--hosts", **more)
        if config.nodes is not None and config.nodes > len(found):
            raise UsageError(
                f"--nodes {config.nodes}, but {config.hosts} has {len(found)}: "
                + ", ".join(spec.name for spec in found)
            )
        return found[: config.nodes]


def _answering(
    specs: Sequence[NodeSpec], answers: Sequence[Probe | str], least: int
) -> tuple[Sequence[NodeSpec], Sequence[Probe | str]]:
    """The nodes that answered, where enough did; each of the others becomes a note."""
    reachable = [index for index, answer in enumerate(answers) if not isinstance(answer, str)]
    if len(reachable) < least:
        return specs, answers
    for answer in answers:
        if isinstance(answer, str):
            print(f"note: going on without it: {answer}", file=sys.stderr)
    return [specs[index] for index in reachable], [answers[index] for index in reachable]


def _is_file(hosts: str) -> bool:
    """Whether a file is meant: there is one, or it could be nothing else."""
    try:
        return Path(hosts).is_file() or "/" in hosts or hosts.endswith((".txt", ".xml"))
    except (OSError, ValueError):  # no name of a file at all
        return False


def _names(specs: Sequence[NodeSpec], probes: Sequence[Probe]) -> list[str]:
    """What to call the nodes: their own host names, where no two are the same."""
    names = [str(probe["host"]).partition(".")[0] for probe in probes]
    return names if len(set(names)) == len(names) else [spec.name for spec in specs]


def _facts(
    specs: Sequence[NodeSpec],
    names: Sequence[str],
    probes: Sequence[Probe],
    addresses: Sequence[str | None],
) -> tuple[NodeFacts, ...]:
    return tuple(
        NodeFacts(
            spec=spec,
            name=name,
            python=probe["python"],
            repository=probe["folder"],
            nproc=_workers(spec, probe),
            address=address,
            shared=probe["shared"],
        )
        for spec, name, probe, address in zip(specs, names, probes, addresses, strict=True)
    )


def _workers(spec: NodeSpec, probe: Probe) -> int:
    return len(probe["gpus"]) if spec.nproc == "gpu" else spec.nproc


def _require_same_environment(
    names: Sequence[str], specs: Sequence[NodeSpec], probes: Sequence[Probe]
) -> None:
    """Refuse nodes on which a worker could not start, or would run something else.

    Raises:
        MusterError: one line for every node that lacks something.
    """
    problems: dict[str, list[str]] = {}  # the nodes that have it

    def add(name: str, problem: str) -> None:
        problems.setdefault(problem, []).append(name)

    for name, spec, probe in zip(names, specs, probes, strict=True):
        if probe["versions"] is None:
            add(name, f"no environment at {probe['python']}; make it: launch/ssh.sh HOSTS --setup")
        elif probe["versions"] != probes[0]["versions"]:
            has = f"has {_versions(probe)}, but {names[0]} has {_versions(probes[0])}"
            add(name, f"{has}; make them equal: launch/ssh.sh HOSTS --setup")
        if spec.nproc == "gpu" and not probe["gpus"]:
            add(name, "slots=gpu, but it shows no GPU; give a number of workers")
        if not probe["shared"] and not probe["rsync"]:
            add(name, "has no rsync; there: sudo apt-get install rsync")
    if problems:
        lines = [f"{', '.join(having)}: {problem}" for problem, having in problems.items()]
        raise MusterError("\n".join(lines))


def _versions(probe: Probe) -> str:
    return ", ".join(f"{name} {version}" for name, version in (probe["versions"] or {}).items())


build = Ssh
