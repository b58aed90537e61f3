"""The nodes that a launcher would use are examined, whatever it reaches them through."""

import os
import sys
from collections.abc import Callable, Mapping

from configs.plugins import REPOSITORY
from configs.settings.launch import Settings
from launch.checks import transports
from launch.checks.examination import Examination, examination, proof, quick, request_here
from launch.checks.findings import Findings
from launch.nodes import interpreter
from launch.slurm import partitions
from launch.spec import Facts
from launch.ssh import node_report
from muster.errors import UsageError


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


def _through_ssh(facts: Facts, settings: Settings) -> Examination:
    specs = [node.spec for node in facts.nodes]
    with proof() as path:
        return quick(
            transports.through_ssh(specs, settings.ssh),
            wanted=settings.launch.network,
            addresses=[spec.address for spec in specs],
            hosts=[spec.name for spec in specs],
            master_port=settings.launch.master_port,
            request=node_report.request(settings.ssh.remote_dir, path, REPOSITORY),
        )


def _through_slurm(facts: Facts, settings: Settings) -> Examination:
    # Slurm itself would let one wait for what never comes, and then call the nodes busy.
    found = partitions.partitions(os.environ)
    problems = list(partitions.problems(settings.launch, settings.slurm, found))
    if problems:
        return examination(Findings("slurm", ()), problems)
    with proof() as path:
        return quick(
            transports.through_slurm(len(facts.nodes), settings.slurm, os.environ),
            wanted=settings.launch.network,
            master_port=settings.launch.master_port,
            request={**request_here(interpreter.python()), "proof": str(path)},
        )


def _here(facts: Facts, settings: Settings) -> Examination:
    with proof() as path:
        return quick(
            transports.here(len(facts.nodes)),
            master_port=settings.launch.master_port,
            request={**request_here(sys.executable), "proof": str(path)},
        )


VISITS: Mapping[str, Callable[[Facts, Settings], Examination]] = {
    "ssh": _through_ssh,
    "slurm": _through_slurm,
    "local": _here,
}
