"""What a run is, for the job that will lead it: a file in the run folder.

Nothing that a user typed goes through the options or the environment of sbatch and srun, where a
comma or a quote would change its meaning: it is read from here.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launch.spec import LaunchSpec
from muster import run_files
from muster.errors import MusterError
from muster.writing import read_json, write_json


def write_spec(spec: LaunchSpec, job: Mapping[str, Any]) -> None:
    """Write down what a job is to lead; `job` has what it needs beside the spec.

    That is `nproc` (workers of each node), `network`, `master_port`, and in a job that is not the
    run's own `step`, the name of its steps there.
    """
    plain = spec.to_json()
    if secrets := plain.pop("secrets"):
        write_json(run_files.SECRETS.path(spec.run_dir), secrets, mode=0o600)
    write_json(run_files.SLURM.path(spec.run_dir), {**job, "spec": plain}, forced=True)


def read_spec(run_dir: Path) -> tuple[LaunchSpec, Mapping[str, Any]]:
    """What the job is to lead, and its other settings.

    Raises:
        MusterError: this node does not see the run folder.
    """
    path = run_files.SLURM.path(run_dir)
    job = read_json(path)
    if job is None:
        raise MusterError(
            f"{path} is not there; the run folder must be on a file system that all nodes share: "
            "choose one with --logs-dir"
        )
    hidden = run_files.SECRETS.path(run_dir)
    found = json.loads(hidden.read_text(encoding="utf-8")) if hidden.exists() else {}
    return LaunchSpec.from_json({**job["spec"], "secrets": found}), job


def step_of(run_dir: Path) -> str | None:
    """The name of the run's steps, where its job is not its own."""
    step: str | None = (read_json(run_files.SLURM.path(run_dir)) or {}).get("step")
    return step
