"""Start the workers on this machine; several nodes are simulated, with one agent each."""

import sys
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path

from configs.settings.launch import ONE_PER_GPU
from configs.settings.remote import SlurmConfig, SshConfig
from launch.agent.led_run import LedRun
from launch.checks.examination import look
from launch.checks.findings import Row
from launch.launchers.base import Launcher, with_data
from launch.nodes import survey
from launch.nodes.answers import Probe
from launch.nodes.channel import start_each
from launch.nodes.network_choice import Choice
from launch.nodes.this_machine import free_port, gpu_count, is_free, ports_of
from launch.programs.command_line import setting_names
from launch.spec import RUN_MODULE, Facts, LaunchSpec, NodeFacts, NodeSpec
from muster.checkout import CHECKOUT
from muster.errors import MusterError

ADDRESS = "127.0.0.1"


class Local(Launcher):
    """This machine as one node, or as several simulated ones."""

    # the project itself runs; --wait and --setup are handled elsewhere
    unused = setting_names(SshConfig, SlurmConfig) - {"wait", "setup"}
    unused |= {"network", "snapshot", "include", "hosts"}

    def problems(self) -> Iterator[str]:
        if any(node.nproc.number == 0 for node in self._nodes):
            yield (
                "--nproc-per-node gpu, but this machine has no GPU\ntip: give a number of workers"
            )
        port = self._config.master_port
        if port is not None and not is_free(port):
            yield (
                f"--master-port {port} is in use on this machine"
                "\ntip: leave it out, or choose another port"
            )

    def probe(self) -> Facts:
        if problems := list(self.problems()):  # also at a restart
            raise MusterError("\n".join(problems))
        return self._facts(self._config.master_port)

    def assume(self) -> Facts:
        # Chosen now, so that the lines of a dry run can be pasted.
        port = self._config.master_port or free_port(ports=ports_of(self._config.port_range))
        return self._facts(port)

    def _facts(self, master_port: int | None) -> Facts:
        return Facts(self._nodes, ADDRESS, master_port, nodes_connect=False)

    @cached_property
    def _nodes(self) -> tuple[NodeFacts, ...]:
        wanted = self._config.nproc()
        gpus = gpu_count() if ONE_PER_GPU in wanted else 0
        counts = [nproc.counted(gpus) for nproc in wanted]
        python_and_folder = sys.executable, str(CHECKOUT)
        return tuple(
            NodeFacts(
                NodeSpec("localhost", count), f"node{index}", *python_and_folder, count, ADDRESS
            )
            for index, count in enumerate(counts)
        )

    def check_nodes(self, facts: Facts, disks: Mapping[str, Path]) -> list[Row]:
        def choose(probes: Mapping[int, Probe]) -> Choice:
            return Choice("127.0.0.0/8", (ADDRESS,) * len(probes))

        transport = survey.local_transport(len(facts.nodes))
        return look(
            transport,
            self.name,
            choose,
            self.workers_python,
            python=sys.executable,
            disks=disks,
            planned=facts.nodes,
        )

    def launch(self, spec: LaunchSpec, facts: Facts) -> LedRun:
        argv = (sys.executable, str(CHECKOUT / RUN_MODULE), "launch.agent")
        start = partial(start_each, lambda index, node: argv, spec.run_dir)
        place = self._data_folder(spec)
        places = {node.spec: place for node in facts.nodes} if place else {}
        complete = partial(with_data, places)
        run = LedRun(start, self.plan, prefixes=False, is_local=True, complete=complete)
        run.start(spec, facts)
        return run

    def _data_folder(self, spec: LaunchSpec) -> str:
        """The folder with the --send data: its source, unless a place on the nodes is given."""
        if spec.send is None:
            return ""
        if spec.send.place is None:
            if not spec.quiet:
                print(
                    f"data: {spec.send.source} (on this machine, nothing is sent)", file=sys.stderr
                )
            return spec.send.source
        from launch.nodes import sending  # imported here, since few runs send data

        transport = survey.local_transport(1)
        (place,) = sending.copy_data(spec.send, ["this machine"], transport, None, quiet=spec.quiet)
        return place


build = Local
