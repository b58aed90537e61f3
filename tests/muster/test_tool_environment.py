"""A user's own settings for squeue, git and the like do not change the answers that we get."""

import os
from contextlib import suppress

import pytest

from configs.settings.launch import LaunchConfig
from launch.launchers.base import launcher_name
from launch.slurm import controller
from launch.ssh import openssh
from muster import git, rank_variables
from muster.errors import MusterError
from tests.written import executable

THEIRS = {
    "SQUEUE_PARTITION": "other",
    "SQUEUE_FORMAT2": "jobid",
    "SINFO_NODES": "none",
    "SINFO_FORMAT": "%N",
    "SCONTROL_ALL": "1",
    "SCANCEL_INTERACTIVE": "1",
    "GIT_DIR": "/elsewhere",
    "RSYNC_OLD_ARGS": "1",
    "RSYNC_ICONV": "utf8,latin1",
}
OF_USER = {"SLURM_CONF": "/slurm.conf", "SLURM_CLUSTERS": "c", "SBATCH_ACCOUNT": "me"}
CALLS = {
    "squeue": lambda _: controller.job_state("12", os.environ),
    "scontrol": lambda _: controller.host_names("node[0-3]", os.environ),
    "scontrol of a step": lambda _: rank_variables._first_host("node[0-3]"),
    "sinfo": lambda _: controller.cores_per_gpu("", os.environ),
    "sinfo for auto": lambda _: launcher_name(LaunchConfig()),
    "scancel": lambda _: controller.act_on("12", ["scancel"], os.environ),
    "rsync": lambda folder: openssh.rsync(["ssh"], [], f"{folder}/", "node0:x"),
    "git": lambda folder: git.ask(folder, "rev-parse", "HEAD"),
}


@pytest.fixture
def tool_environment(tmp_path, monkeypatch):
    """Return a function that gives the environment that a tool has received."""
    for name in ("squeue", "scontrol", "sinfo", "scancel", "sbatch", "rsync", "git"):
        executable(tmp_path / name, f"#!/bin/sh\n/usr/bin/env > {tmp_path}/$(basename $0).seen\n")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for name, value in (THEIRS | OF_USER).items():
        monkeypatch.setenv(name, value)

    def of(tool: str) -> dict[str, str]:
        lines = (tmp_path / f"{tool}.seen").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    return of


@pytest.mark.parametrize("call", CALLS)
def test_called_tool_gets_none_of_its_configuring_variables(call, tool_environment, tmp_path):
    tool = call.split()[0]
    with suppress(MusterError, IndexError):  # the tool gives no answer
        CALLS[call](tmp_path)
    env = tool_environment(tool)
    own = {"git": ("GIT_DIR",), "rsync": ("RSYNC_",)}.get(tool, ("SQUEUE", "SINFO", "SC"))
    assert [name for name in THEIRS if name.startswith(own) and name in env] == []
    assert {name: env.get(name) for name in OF_USER} == OF_USER


def test_settings_of_jobs_and_for_commands_of_the_program_reach_sbatch(tool_environment):
    controller.ask(["sbatch", "job.sh"], os.environ)
    env, passed = (
        tool_environment("sbatch"),
        ("SBATCH_ACCOUNT", "SLURM_CONF", "SQUEUE_FORMAT2", "GIT_DIR"),
    )
    assert [name for name in passed if name not in env] == []
