"""A cluster's settings in `muster.toml` apply unless a flag overrides them."""

import json
import os
import sys
from types import SimpleNamespace

import pytest

from configs import cli, clusters
from launch.programs.command_line import CommandLine
from launch.slurm.batch_script import user_options
from muster import ownership
from muster.checkout import CHECKOUT
from muster.command import COMMANDS
from muster.errors import UsageError
from tests.commands import call
from tests.configs import odd_values
from tests.fuzzing import fuzzed
from tests.required import need

USERS = """
[clusters.hpc]
launcher = "slurm"
partition = "long"
nodes = 8
snapshot = false
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
    return project


def test_flags_win_then_the_project_then_the_user(project):
    line = CommandLine.parse(["--on", "hpc", "--nodes", "2", "--", "train.py"])
    launch = line.launch
    assert (launch.launcher, launch.most_nodes, line.own.snapshot) == ("slurm", 2, False)
    assert (line.slurm.partition, line.slurm.account) == ("gpu", "lab")
    assert line.own.prologue == project / "setup" / "modules.sh"
    assert CommandLine.parse(["--on", "mine"]).launch.most_nodes == 3
    assert CommandLine.parse(["--on=hpc", "--snapshot", "--", "a.py"]).own.snapshot
    assert CommandLine.parse(["--", "train.py"]).slurm.partition is None


def test_partitions_may_be_a_list(project):
    lists = '[clusters.two]\npartition = ["short", "main"]\naccount = "x"\n'
    (project / "muster.toml").write_text(lists)
    slurm = CommandLine.parse(["--on", "two", "--", "train.py"]).slurm
    assert (slurm.partition, slurm.account) == ("short,main", "x")


def test_flags_add_options_of_sbatch_to_those_of_a_cluster(project):
    (project / "muster.toml").write_text('[clusters.a]\nslurm = ["qos=low", "hold"]\n')
    line = CommandLine.parse(["--on", "a", "--slurm", "qos=high", "--slurm", "nice", "--", "a.py"])
    assert user_options(line.slurm) == {"qos": "high", "hold": True, "nice": True}


def test_a_cluster_minds_no_program_and_no_other_launcher(project):
    line = CommandLine.parse(["--on", "hpc", "--launcher", "local"])  # our trainer has no prologue
    assert line.launch.launcher == "local" and line.train is not None
    assert "partition" not in {given.name for given in line.parsed.explicit}


def test_paths_are_relative_to_the_file(project):
    paths = {
        "hosts": "hosts.txt", "ssh_config": "setup/ssh", "send": "data:/scratch",
        "env_file": ".env", "python": "env/bin/python", "container": "image.sif",
    }  # fmt: skip
    lines = [f'{name} = "{text}"' for name, text in paths.items()]
    lines += ["[clusters.b]", 'hosts = "nodes"', 'python = "./python"', 'container = "a/b.sif"']
    lines += ["[clusters.c]", 'hosts = "node[0-3],me@other:2222"', 'python = "python3.12"']
    lines += ['container = "docker://a/b"', 'ssh_config = "none"', 'send = "~/data"']
    (project / "muster.toml").write_text("\n".join(["[clusters.a]", *lines]))
    for name in ("nodes", "python3.12"):  # the former is a hosts file
        (project / name).touch()

    def settings_of(cluster: str) -> dict[str, str]:
        return {given.name: given.text for given in cli.cluster(cluster)}

    assert settings_of("a") == {name: f"{project}/{text}" for name, text in paths.items()}
    in_project = {"hosts": "nodes", "python": "python", "container": "a/b.sif"}
    assert settings_of("b") == {name: f"{project}/{text}" for name, text in in_project.items()}
    assert settings_of("c") == {
        "hosts": "node[0-3],me@other:2222", "python": "python3.12",
        "container": "docker://a/b", "ssh_config": "none", "send": "~/data",
    }  # fmt: skip


def test_config_yaml_of_a_run_repeats_it_without_muster_toml(project):
    line = CommandLine.parse(["--on", "hpc", "--", "train.py"])
    (project / "config.yaml").write_text(cli.to_yaml(line.launch, line.slurm))
    (project / "muster.toml").unlink()
    again = CommandLine.parse(["--config", str(project / "config.yaml")])
    assert again.slurm == line.slurm and again.launch.nodes == line.launch.nodes


def test_toml_with_bom_and_crlf_is_read(project):
    text = "\ufeff" + PROJECTS.replace("\n", "\r\n")
    (project / "muster.toml").write_bytes(text.encode())
    assert CommandLine.parse(["--on", "hpc", "--", "train.py"]).slurm.account == "lab"


def given_away(path):
    """Give a file to another user, which only root can do."""
    need("root")
    os.chown(path, 65_534, -1)


@pytest.mark.needs("git")
def test_a_file_above_the_project_is_not_read(project, tmp_path):
    call("git", "init", "--quiet", str(project))
    (project / "muster.toml").rename(tmp_path / "muster.toml")
    assert clusters.files(project / "setup", os.environ) == [tmp_path / "home/muster/muster.toml"]


def test_without_git_the_search_ends_where_the_folders_are_of_others(project, tmp_path):
    (project / "muster.toml").rename(tmp_path / "muster.toml")
    assert tmp_path / "muster.toml" in clusters.files(project / "setup", os.environ)
    given_away(tmp_path)
    assert clusters.files(project / "setup", os.environ) == [tmp_path / "home/muster/muster.toml"]


@pytest.mark.parametrize("whose", ["muster.toml", ".", "setup"])
def test_settings_of_another_user_are_refused(project, monkeypatch, whose):
    """Otherwise, their author could run commands as this user."""
    monkeypatch.chdir(project / ("setup" if whose == "setup" else "."))
    given_away(project / whose)
    if whose == "setup":  # the current folder is a stranger's
        given_away((project / "muster.toml").rename(project / "setup" / "muster.toml"))
    with pytest.raises(UsageError, match=r"muster\.toml .* belongs to "):
        CommandLine.parse(["--on", "hpc", "--", "train.py"])
    assert CommandLine.parse(["--", "train.py"]).slurm.account is None  # no cluster was requested


@pytest.mark.parametrize(("what", "mode"), [
    ("muster.toml", 0o666), (".", 0o777), ("muster.toml", 0o660), (".", 0o770),
])  # fmt: skip
def test_settings_that_others_may_write_are_refused(project, monkeypatch, what, mode):
    monkeypatch.setattr(ownership, "_is_private", lambda group, owner: False)
    (project / what).chmod(mode)
    with pytest.raises(UsageError, match=r"write to .* \(mode "):
        CommandLine.parse(["--on", "hpc", "--", "train.py"])


def test_your_own_settings_are_refused_alike(project, tmp_path):
    (tmp_path / "home" / "muster" / "muster.toml").chmod(0o666)
    with pytest.raises(UsageError, match=r"home/muster/muster\.toml"):
        CommandLine.parse(["--on", "hpc", "--", "train.py"])


def test_a_group_of_your_own_is_nobody_else(project, monkeypatch):
    """With umask 002, all files are writable for this group."""
    for path in (project, project / "muster.toml"):
        path.chmod(path.stat().st_mode | 0o020)
        os.chown(path, -1, os.getgid())
    user = SimpleNamespace(pw_name="ada", pw_gid=os.getgid())
    monkeypatch.setattr(ownership.pwd, "getpwuid", lambda _: user)
    for name, members, is_own in (("ada", [], True), ("lab", [], False), ("ada", ["bob"], False)):
        group = SimpleNamespace(gr_name=name, gr_mem=members)
        monkeypatch.setattr(ownership.grp, "getgrgid", lambda _, group=group: group)
        why = ownership.distrusted(project / "muster.toml")
        assert (why is None) == is_own, why


def test_muster_config_says_what_holds_and_from_where(project):
    first, module = COMMANDS["config"]
    argv = [sys.executable, str(CHECKOUT / first), module, "--on", "hpc", "--time", "30"]
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


def toml(value) -> str:
    """Return a value in TOML syntax."""
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)} = {toml(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


TABLE = odd_values.settings(sorted(cli.CLUSTER_SETTINGS)).map(
    lambda chosen: "[clusters.a]\n" + "".join(f"{toml(k)} = {toml(v)}\n" for k, v in chosen.items())
)
PARTS = [
    "[clusters.a]",
    "[",
    "]",
    "=",
    "a.",
    "nodes",
    "\n",
    "'",
    '"""',
    "{",
    "}",
    "1979-05-27",
    "0x",
]
WRITTEN = odd_values.written(PARTS)


@fuzzed(TABLE | WRITTEN)
def test_random_toml_is_settings_or_refused_by_name(tmp_path_factory, read_again, text):
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clusters, "files", lambda *_: [path])
        read_again()
        try:
            CommandLine.parse(["--on", "a", "--", "train.py"])
        except UsageError as error:
            assert all(str(path) in line or "--" in line for line in str(error).splitlines())
