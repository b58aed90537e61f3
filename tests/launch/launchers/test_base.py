"""`--launcher auto` never trains on the login node of a cluster."""

import sys

import pytest

from configs.settings.launch import LaunchConfig
from launch.launchers.base import launcher_name, launcher_of
from launch.programs.command_line import CommandLine
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.commands import call
from tests.written import executable

ANSWERS = [
    ("echo main", 300.0, "slurm"),
    ("exec sleep 1000", 0.1, "slurm"),  # a busy controller
    (
        "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1",
        300.0,
        "slurm",
    ),
    ("echo 'sinfo: fatal: Could not establish a configuration source' >&2; exit 1", 300.0, "local"),
]


@pytest.mark.parametrize(("sinfo", "patience_s", "launcher"), ANSWERS)
def test_slurm_is_chosen_wherever_sbatch_belongs_to_a_cluster(
    sinfo, patience_s, launcher, tmp_path, monkeypatch
):
    monkeypatch.setattr("launch.slurm.controller.SLURM_CLUSTER_ANSWERS_S", patience_s)
    for name, text in {"sbatch": "exit 1", "sinfo": sinfo}.items():
        executable(tmp_path / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert launcher_name(LaunchConfig()) == launcher
    assert launcher_name(LaunchConfig(hosts="a,b")) == "ssh"
    assert launcher_name(LaunchConfig(launcher="local")) == "local"


def test_slurm_is_asked_once_for_all_runs_of_a_study(tmp_path, monkeypatch):
    for name, text in {"sbatch": "exit 1", "sinfo": f"echo asked >> {tmp_path}/asked"}.items():
        executable(tmp_path / name, f"#!/bin/sh\n{text}\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert [launcher_name(LaunchConfig()) for _ in range(3)] == ["slurm"] * 3
    assert (tmp_path / "asked").read_text() == "asked\n"


def test_only_the_launcher_that_was_chosen_is_imported(tmp_path):
    code = (
        "import sys\n"
        "sys.argv = ['submit.py', '--launcher', 'auto', '--dry-run', '--task', 'synthetic']\n"
        "from launch import submit\n"
        "submit.main()\n"
        "print([name for name in sys.modules if name.startswith('launch.launchers.')])\n"
    )
    env = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = call(sys.executable, "-c", code, cwd=CHECKOUT, env=env)
    last = done.stdout.splitlines()[-1] if done.stdout else done.stderr
    assert last == "['launch.launchers.base', 'launch.launchers.local']", done.stderr


def test_slurm_launcher_without_sbatch_is_refused_with_login_flag(tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    launcher = launcher_of(CommandLine.parse(["--launcher", "slurm", "--", "true"]))
    facts = launcher.assume()  # a dry run needs no sbatch
    for ask in (launcher.probe, lambda: launcher.check_nodes(facts, {})):
        with pytest.raises(UsageError, match=r"sbatch .* --login me@cluster"):
            ask()
