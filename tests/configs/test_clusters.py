"""What `muster.toml` says of a cluster holds where no flag says otherwise."""

import json
import sys

import pytest

from configs import cli, clusters
from configs.plugins import REPOSITORY
from launch.programs import command_line
from launch.programs.command_line import CLASSES, CommandLine
from muster.command import COMMANDS
from muster.errors import UsageError
from tests.commands import call

USERS = """
[clusters.hpc]
launcher = "slurm"
partition = "long"
nodes = 8
preflight = false
[clusters.mine]
nodes = 3
"""
PROJECTS = """
[clusters.hpc]
partition = "gpu"  # of this project

account = "lab"
prologue = "setup/modules.sh"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "home" / "muster").mkdir(parents=True)
    (tmp_path / "home" / "muster" / "muster.toml").write_text(USERS)
    project = tmp_path / "project"
    (project / "setup").mkdir(parents=True)
    (project / "setup" / "modules.sh").touch()
    (project / "muster.toml").write_text(PROJECTS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(project / "setup")
    command_line._read.cache_clear()  # a process reads a file once
    return project


def test_flags_win_then_the_project_then_the_user(project):
    line = CommandLine.of(["--on", "hpc", "--nodes", "2", "--", "train.py"])
    assert (line.launch.launcher, line.launch.nodes, line.launch.preflight) == ("slurm", 2, False)
    assert (line.slurm.partition, line.slurm.account) == ("gpu", "lab")
    assert line.own.prologue == project / "setup" / "modules.sh"
    assert CommandLine.of(["--on", "mine"]).launch.nodes == 3
    assert CommandLine.of(["--on=hpc", "--preflight", "--", "a.py"]).launch.preflight
    assert CommandLine.of(["--", "train.py"]).slurm.partition is None


def test_a_cluster_minds_no_program_and_no_other_launcher(project):
    line = CommandLine.of(["--on", "hpc", "--launcher", "local"])  # our trainer has no prologue
    assert line.launch.launcher == "local" and line.train is not None
    assert "partition" not in {one.name for one in cli.given(CLASSES, ["--on", "hpc"])}


def test_what_a_run_wrote_down_repeats_it_without_the_file(project):
    line = CommandLine.of(["--on", "hpc", "--", "train.py"])
    (project / "config.yaml").write_text(cli.to_yaml(line.launch, line.slurm))
    (project / "muster.toml").unlink()
    again = CommandLine.of(["--config", str(project / "config.yaml")])
    assert again.slurm == line.slurm and again.launch.nodes == line.launch.nodes


@pytest.mark.parametrize(("text", "problem"), [
    ("[clusters.a]\nnodes = 1\npartitions = 'x'\n", "muster.toml:3: unknown key 'partitions'"),
    ("[clusters.a]\nrun_id = 'x'\n", "muster.toml:2: unknown key 'run_id'; known: account, "),
    ("[clusters.a]\nlogins = 'x'\n", "muster.toml:2: unknown key 'logins'; known: account, "),
    ("[clusters.a]\nnodes = [1, 2]\n", "muster.toml:2: nodes: expected one value"),
    ("[clusters.a]\nnodes = 'many'\n", "muster.toml:2: nodes: expected N or MIN:MAX"),
    ("[cluster.a]\n", "muster.toml: unknown key 'cluster'; known: clusters"),
    ("[clusters.a]\nnodes = \n", "muster.toml: Invalid value (at line 2, column 9)"),
    ("[clusters.b]\n", "known: b, hpc, mine"),
])  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_line(project, text, problem):
    (project / "muster.toml").write_text(text)
    with pytest.raises(UsageError) as error:
        CommandLine.of(["--on", "a", "--", "train.py"])
    assert problem in str(error.value)


def test_without_a_file_the_error_names_where_one_may_be(project, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    (project / "muster.toml").unlink()
    if not clusters.files(project, {"XDG_CONFIG_HOME": str(tmp_path / "none")}):
        with pytest.raises(UsageError, match=r"--on hpc: there is no muster\.toml here, above"):
            CommandLine.of(["--on", "hpc"])


def test_muster_config_says_what_holds_and_from_where(project):
    first, module = COMMANDS["config"]
    argv = [sys.executable, str(REPOSITORY / first), module, "--on", "hpc", "--time", "30"]
    done = call(*argv)
    assert done.returncode == 0, done.stderr
    assert f"partition: gpu  ({project / 'muster.toml'}:3)" in done.stdout
    for line in ("time: 30  (the command line)", "on_hang: warn  (default)"):
        assert line in done.stdout
    done = call(*argv, "--json")
    (found,) = map(json.loads, done.stdout.splitlines())
    assert found["kind"] == "settings" and found["settings"]["nodes"]["value"] == "8"
    assert found["settings"]["nodes"]["from"].endswith("home/muster/muster.toml:5")
    assert done.stderr.count("partition: gpu") == 1
