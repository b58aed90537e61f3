"""Start the workers on machines over ssh, without a scheduler."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from configs import console
from configs.settings.launch import ONE_PER_GPU, ONE_WORKER, is_hosts_file, text_problems
from configs.settings.remote import SlurmConfig
from launch.agent.led_run import LedRun
from launch.checks.examination import check_answers, look
from launch.checks.findings import Row, lines
from launch.checks.node_checks import SHARED_MEMORY
from launch.launchers.base import Launcher, with_data
from launch.nodes import network_choice
from launch.nodes.answers import Probe
from launch.nodes.channel import AgentProcess, Heartbeat, start_each
from launch.nodes.node_data import NO_RSYNC
from launch.nodes.survey import Survey, facts_request
from launch.programs.command_line import CommandLine, setting_names
from launch.programs.own_program import is_generated
from launch.programs.project_snapshot import path_on_nodes
from launch.runs import node_history
from launch.spec import PLACEHOLDER, RUN_MODULE, Facts, LaunchSpec, NodeFacts, NodeSpec
from launch.ssh import hosts, openssh, transfer
from muster import extras, run_files
from muster.checkout import CHECKOUT, nodes_python
from muster.errors import MusterError, UsageError
from muster.printable import counted
from muster.terminal import TIP


class Ssh(Launcher):
    """The machines of a hosts file, a manifest, or a list of names."""

    takes_snapshot = True
    sees_python = False
    unused = setting_names(SlurmConfig) - {"wait", "exclude"}

    def problems(self) -> Iterator[str]:
        if self._config.hosts is None:
            yield (
                f"--launcher ssh needs --hosts{TIP}add --hosts with a hosts file, a CloudLab "
                "manifest, or host names"
            )
        path = self._ssh.ssh_config
        if self._config.send is not None and shutil.which("rsync") is None:
            yield (
                "--send needs rsync, which is not installed here"
                "\ntip: run: sudo apt-get install rsync"
            )
        if path is not None and str(path) != "none":  # ssh's own word for no file
            yield from text_problems("--ssh-config", path)

    def probe(self) -> Facts:
        specs = self.specs()
        with Survey(openssh.transport(specs, self._ssh)) as survey:
            console.update_status(f"connecting to {counted(len(specs), 'node')}")
            probes = self._ask(survey)
            console.update_status(f"checking {counted(len(specs), 'node')}")
            chosen = self._choose(specs, probes)
            nodes = _facts(specs, survey.names_of(probes), probes, chosen.addresses)
            self._refuse_without_gpus(nodes)
            if self.checks_nodes:
                workers = self.workers_python
                findings = check_answers(survey, probes, self.name, lambda _: chosen, workers)
                # agents check this, since only they know how many workers share it
                others = [row for row in findings if row.check != SHARED_MEMORY]
                for line in lines(others, "warn"):
                    print(f"note: {line}", file=sys.stderr)
                survey.refuse_broken(probes)
                absent = [*self._without_rsync(nodes, probes), *self._without_data(survey, probes)]
                transfer.fail([*lines(findings, "FAIL"), *absent])
        return Facts(nodes, chosen.addresses[0], self._config.master_port, chosen.network)

    def _without_rsync(
        self, nodes: Sequence[NodeFacts], probes: Mapping[int, Probe]
    ) -> Iterator[str]:
        """A line for each node without rsync, which is needed to copy the code or data there."""
        for node, probe in zip(nodes, probes.values(), strict=True):
            is_needed = self._config.send is not None or not node.shared
            if is_needed and not probe.has_rsync:
                yield f"{node.name}: {NO_RSYNC}"

    @property
    def _data_dir(self) -> Path | None:
        """The folder that our trainer's workers read, if --send does not bring it."""
        settings = self.settings
        train = settings.train if isinstance(settings, CommandLine) else None
        if train is None or train.data_dir is None or self._config.send is not None:
            return None
        return None if is_generated(train) else train.data_dir.absolute()

    def _without_data(self, survey: Survey, probes: Mapping[int, Probe]) -> Iterator[str]:
        """A line for each node that does not see the folder of --data-dir."""
        folder = self._data_dir
        if folder is None:
            return
        advice = f"add --send {shlex.quote(str(folder))}" if folder.is_dir() else "copy it there"
        for name, probe in zip(survey.names_of(probes), probes.values(), strict=True):
            if not probe.disks["data"].exists:
                yield f"{name}: --data-dir {folder} does not exist on this node{TIP}{advice}"

    def check_nodes(self, facts: Facts, disks: Mapping[str, Path]) -> list[Row]:
        specs = [node.spec for node in facts.nodes]
        choose = partial(self._choose, specs)
        folder = self._ssh.remote_dir
        transport = openssh.transport(specs, self._ssh)
        return look(
            transport,
            self.name,
            choose,
            self.workers_python,
            folder,
            disks=disks,
            planned=facts.nodes,
        )

    def set_up(self) -> None:
        """Create the environment on every node, without torch if workers have their own Python.

        Raises:
            MusterError: one line for every node on which it failed.
        """
        specs = self.specs()
        with Survey(openssh.transport(specs, self._ssh)) as survey:
            probes = self._ask(survey)
            nodes = _facts(specs, survey.names_of(probes), probes, [None] * len(probes))
        has_own = self.workers_python.python is not None
        packages = [*extras.packages(extras.BASE)] if has_own else []
        transfer.make_environments(nodes, self._ssh, packages)

    def assume(self) -> Facts:
        specs = self.specs()
        remote_dir = self._ssh.remote_dir
        folder = remote_dir or str(CHECKOUT)
        python = f"{remote_dir}/.venv/bin/python" if remote_dir else nodes_python()
        nodes = tuple(
            NodeFacts(spec, f"node{index}", python, folder, spec.nproc, spec.address)
            for index, spec in enumerate(specs)
        )
        return Facts(nodes, specs[0].address or PLACEHOLDER, self._config.master_port)

    def launch(self, spec: LaunchSpec, facts: Facts) -> LedRun:
        places: dict[NodeSpec, str] = {}  # where each node has the --send data
        start = partial(self._start_agents, spec, places)
        complete = partial(with_data, places)
        run = LedRun(start, self.plan, prefixes=True, complete=complete)
        run.start(spec, facts)
        return run

    def _start_agents(
        self,
        spec: LaunchSpec,
        places: dict[NodeSpec, str],
        nodes: Mapping[int, NodeFacts],
        heartbeat: Heartbeat,
    ) -> Iterator[AgentProcess]:
        """Start an agent on each node, after sending the --send data there.

        A node that does not share this machine's disk first gets the code.
        """
        own_disk = [node for node in nodes.values() if not node.shared]
        if own_disk:
            transfer.send_checkout(own_disk, self._ssh, _sent_folders(spec, nodes.values()))
        if spec.send is not None:
            places |= transfer.send_data(spec.send, [*nodes.values()], self._ssh, quiet=spec.quiet)

        def argv_of(index: int, node: NodeFacts) -> Sequence[str]:
            words = ["env", "-C", node.repository, node.python, RUN_MODULE, "launch.agent"]
            return openssh.command(node.spec, self._ssh, words, index)

        yield from start_each(argv_of, spec.run_dir, nodes, heartbeat)

    def probe_again(self, facts: Facts, lives: Callable[[NodeFacts], bool]) -> Facts:
        specs = self.specs()
        by_spec = {node.spec: node for node in facts.nodes if lives(node)}
        if not by_spec or facts.network is None:
            return self.probe()
        missing = [spec for spec in specs if spec not in by_spec]
        if missing:
            returned = self._returned_nodes(missing, len(by_spec), facts)
            by_spec |= {node.spec: node for node in returned}
        nodes = tuple(by_spec[spec] for spec in specs if spec in by_spec)
        return Facts(
            nodes, nodes[0].address or PLACEHOLDER, self._config.master_port, facts.network
        )

    def _returned_nodes(
        self, missing: Sequence[NodeSpec], living: int, facts: Facts
    ) -> tuple[NodeFacts, ...]:
        """The nodes of `missing` that answer; `living`: how many other nodes have an agent.

        Raises:
            MusterError: too few nodes answer.
        """
        with Survey(openssh.transport(missing, self._ssh)) as survey:
            probes = self._ask(survey, living)
            if not probes:
                return ()
            hosts = [missing[index].host for index in probes]
            given = [missing[index].address for index in probes]
            every = list(probes.values())
            chosen = network_choice.choose(every, hosts, given, facts.network)
            # a node that returns keeps its name
            names = {node.spec: node.name for node in facts.nodes}
            own = zip(probes, survey.names_of(probes), strict=True)
            named = [names.get(missing[index], name) for index, name in own]
            nodes = _facts(missing, named, probes, chosen.addresses)
            self._refuse_without_gpus(nodes)
            return nodes

    def _refuse_without_gpus(self, nodes: Sequence[NodeFacts]) -> None:
        """Refuse nodes that should have a worker on each GPU, but have no GPU."""
        if without := ", ".join(node.name for node in nodes if node.nproc.number == 0):
            is_flag = ONE_PER_GPU in (self._config.nproc_per_node or ())
            given = "--nproc-per-node gpu" if is_flag else "slots=gpu"
            raise MusterError(
                f"{without}: {given}, but no GPU found\ntip: give a number of workers"
            )

    def _ask(self, survey: Survey, living: int = 0) -> dict[int, Probe]:
        """The facts of each node; with --nodes 2:4, of those that answer, if there are enough.

        `living`: how many nodes have an agent, and so are not asked.

        Raises:
            MusterError: too few nodes answer; with a line for each node that does not.
        """
        least = self._config.least_nodes
        workers = self.workers_python.python
        disks = {"data": self._data_dir} if self._data_dir is not None else {}
        with facts_request(self._ssh.remote_dir, disks=disks, workers=workers) as request:
            probes, silent = survey.probes(request)
        all_wanted = self._config.nodes is None or least >= living + len(probes) + len(silent)
        if silent and (all_wanted or living + len(probes) < least):
            survey.refuse_broken(silent)
            raise MusterError("\n".join(silent.values()))
        for line in silent.values():
            print(f"note: continuing without this node: {line}", file=sys.stderr)
        return probes

    def _choose(
        self, specs: Sequence[NodeSpec], probes: Mapping[int, Probe]
    ) -> network_choice.Choice:
        """The network for gradients, among the nodes that answered."""
        return network_choice.choose(
            list(probes.values()),
            [specs[index].host for index in probes],
            [specs[index].address for index in probes],
            self._config.network,
        )

    def specs(self) -> tuple[NodeSpec, ...]:
        """The nodes, as the settings name them.

        Raises:
            UsageError: the settings do not fit them, or the hosts file is wrong.
        """
        config = self._config
        assert config.hosts is not None
        slots, *others = config.nproc(nodes=1)
        if others:
            given = ",".join(map(str, [slots, *others]))
            raise UsageError(
                f"--nproc-per-node {given}: over ssh, give one number for all nodes"
                "\ntip: for different numbers, write slots in the hosts file: node0 slots=2"
            )
        user = self._ssh.user
        me = os.environ.get("USER")
        if is_hosts_file(config.hosts):
            specs = hosts.read_hosts(Path(config.hosts), slots, user=user, me=me)
        else:
            specs = hosts.parse_hosts([config.hosts], slots, "--hosts", user=user)
        specs = self._without_excluded(specs)
        most = config.most_nodes
        if most is not None and most > len(specs):
            raise UsageError(
                f"--nodes {config.nodes}, but {config.hosts} has only {len(specs)}: "
                + ", ".join(spec.name for spec in specs)
            )
        return specs[:most]

    def _without_excluded(self, specs: tuple[NodeSpec, ...]) -> tuple[NodeSpec, ...]:
        """The nodes that --exclude leaves; `auto` keeps as many nodes as are needed."""
        if (text := self._slurm.exclude) is None:
            return specs
        excluded = {spec.host for spec in hosts.parse_hosts([text], ONE_WORKER, "--exclude")}
        left = [spec.host for spec in specs if spec.host not in excluded]
        if node_history.AUTO in excluded:
            excluded |= node_history.avoided(left, self.name, self._config.most_nodes or 1)
        if not set(left) - excluded:
            raise UsageError(f"--exclude {text} leaves no node of {self._config.hosts}")
        return tuple(spec for spec in specs if spec.host not in excluded)


def _facts(
    specs: Sequence[NodeSpec],
    names: Sequence[str],
    probes: Mapping[int, Probe],
    addresses: Sequence[str | None],
) -> tuple[NodeFacts, ...]:
    """The nodes that answered; with one worker per GPU, the number of workers may be 0."""
    nodes = []
    for (index, probe), name, address in zip(probes.items(), names, addresses, strict=True):
        spec = specs[index]
        count = spec.nproc.counted(len(probe.gpus))
        versions = probe.workers or probe.versions
        plugins = versions.plugins if versions else ()
        nodes.append(
            NodeFacts(spec, name, probe.python, probe.folder, count, address, probe.shared, plugins)
        )
    return tuple(nodes)


def _sent_folders(spec: LaunchSpec, nodes: Collection[NodeFacts]) -> dict[Path, str]:
    """The folders of a user's program, and their paths on nodes with their own disks."""
    folders = {
        run_files.SNAPSHOT.path(spec.run_dir): path_on_nodes(spec.run_id),
        run_files.FUNCTION.path(spec.run_dir): path_on_nodes(spec.run_id, "function"),
    }
    folders = {root: path for root, path in folders.items() if root.exists()}
    for root, path in folders.items():
        if any(node.shared for node in nodes) and not (CHECKOUT / path).exists():
            (CHECKOUT / path).symlink_to(root)  # a node that sees this checkout finds it there
    return {root: str(path) for root, path in folders.items()}


build = Ssh
