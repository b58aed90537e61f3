"""What a Slurm job's batch script and its tasks share: files in the run folder.

Nothing that a user typed goes through srun's options or environment, where a comma or a quote
would change its meaning: it is read from here.
"""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from typing import Any

from launch.nodes.ports import among, is_free
from launch.slurm.allocation import Allocation, coordinator_address
from launch.slurm.queue.job_state import end_unix_s
from launch.spec import LaunchSpec, Program
from muster import run_files
from muster.errors import MusterError
from muster.writing import read_json, write_json

PATIENCE_S = 60.0  # of a task, for a file that a network file system does not show yet


def write_spec(spec: LaunchSpec, job: Mapping[str, Any]) -> None:
    """Write down what each task is to do; `job` has what Slurm's tasks need beside the spec.

    That is `nproc` (workers of each node), `network`, `master_port`, and in a job that is not the
    run's own `step`, the name of its steps there.
    """
    plain = {**asdict(spec), "run_dir": str(spec.run_dir)}
    if secrets := plain.pop("secrets"):
        write_json(run_files.SECRETS.path(spec.run_dir), secrets, mode=0o600)
    write_json(run_files.SLURM.path(spec.run_dir), {**job, "spec": plain}, forced=True)


def read_spec(run_dir: Path) -> tuple[LaunchSpec, Mapping[str, Any]]:
    """What a task is to do, and the job's other settings.

    Raises:
        MusterError: this node does not see the run folder.
    """
    job = _wait_for(run_files.SLURM.path(run_dir))
    raw = job["spec"]
    hidden = run_files.SECRETS.path(run_dir)
    found = json.loads(hidden.read_text(encoding="utf-8")) if hidden.exists() else {}
    lists = {name: tuple(raw["program"][name]) for name in ("argv", "wrap")}
    program = Program(**{**raw["program"], **lists})
    return LaunchSpec(
        **{**raw, "run_dir": Path(raw["run_dir"]), "program": program, "secrets": found}
    ), job


def step_of(run_dir: Path) -> str | None:
    """The name of the run's steps, where its job is not its own."""
    step: str | None = (read_json(run_files.SLURM.path(run_dir)) or {}).get("step")
    return step


def decide_coordinator(run_dir: Path) -> None:
    """Write down where the agents of the next attempt meet: on this node, the job's first.

    Raises:
        MusterError: it has no address at which others reach it.
    """
    allocation = Allocation.from_env(os.environ)
    spec, job = read_spec(run_dir)
    address = coordinator_address(allocation, job["network"])
    free = tuple(port for port in allocation.ports(among(spec.ports)) if is_free(port))
    write_coordinator(run_dir, allocation, address, free, end_unix_s(allocation.job_id, os.environ))


def write_coordinator(
    run_dir: Path,
    allocation: Allocation,
    address: str,
    ports: tuple[int, ...],
    ends_unix_s: float | None = None,
) -> None:
    """Write down where the agents of this attempt meet, and the secret by which they know it.

    `ends_unix_s`: when the time of the job is up.
    """
    path = _coordinator_file(run_dir, allocation)
    meeting: dict[str, Any] = {"address": address, "ports": ports, "token": token_hex(16)}
    meeting["ends_unix_s"] = ends_unix_s
    write_json(path, meeting, mode=0o600)


def read_coordinator(run_dir: Path, allocation: Allocation) -> Mapping[str, Any]:
    """Where the agents of this attempt meet.

    Raises:
        MusterError: the batch script has not said so, or this node does not see it.
    """
    return _wait_for(_coordinator_file(run_dir, allocation))


def _coordinator_file(run_dir: Path, allocation: Allocation) -> Path:
    return run_files.COORDINATOR.path(run_dir, name=allocation.job_id, attempt=allocation.attempt)


def _wait_for(path: Path) -> Mapping[str, Any]:
    deadline = time.monotonic() + PATIENCE_S
    while (record := read_json(path)) is None:
        if time.monotonic() > deadline:
            raise MusterError(
                f"{path} is not there; the run folder must be on a file system that all nodes "
                "share: choose one with --logs-dir"
            )
        time.sleep(0.1)
    return record
