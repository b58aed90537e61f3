"""Plugins that other packages add to the trainer are looked up in the workers' Python."""

import sys
import venv
from pathlib import Path

import pytest

from configs import cli
from configs.plugins import own_names
from launch.launchers.base import launcher_of
from launch.nodes import node_facts
from launch.programs.command_line import CommandLine
from launch.programs.own_program import OwnProgram
from launch.studies.cells import from_grid
from muster.errors import UsageError
from tests.written import package

ADDED = "[muster.tasks]\nchess = plays:build\n[muster.compressors]\nsign = sends:build\n"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The Python of an environment with a package that adds a task and a compressor."""
    folder = tmp_path_factory.mktemp("workers") / "env"
    venv.create(folder, symlinks=True, with_pip=False)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    package(packages, "plays", ADDED)
    return folder / "bin" / "python"


@pytest.fixture(autouse=True)
def jobs_have_it(python, monkeypatch):
    monkeypatch.setenv("MUSTER_PYTHON", str(python))


def program(*words: str, launcher: str = "slurm") -> OwnProgram:
    made = CommandLine.parse(["--launcher", launcher, *words]).program(Path("/"))
    assert isinstance(made, OwnProgram)
    return made


def test_plugin_of_the_workers_python_is_taken(python):
    made = program("--task", "chess", "--sync", "all_reduce", "--compress", "sign")
    made.check_plugins(str(python))
    assert cli.to_argv(made.run)[:1] == ["--task=chess"]


def test_plugin_that_the_workers_lack_is_refused(python):
    made = program("--task", "ches", "--compress", "sing")
    with pytest.raises(UsageError) as refused:
        made.check_plugins(str(python), node="node3")
    tasks, compress = sorted(str(refused.value).splitlines(), key=len, reverse=True)
    where = f"in {python} on node3; choose from"
    assert tasks.startswith(f"--task: unknown 'ches' {where} bert, bsc_benchmark, chess, ")
    assert compress == f"--compress: unknown 'sing' {where} bf16, fp16, powersgd, sign"


def test_plugins_are_judged_by_answer_of_nodes_python():
    made = program("--task", "chess", "--hosts", "a,b", launcher="ssh")
    made.check_plugins("/nodes/own/python", ["muster.tasks:chess"])
    made.check_plugins("/nodes/own/python")
    with pytest.raises(
        UsageError, match="unknown 'chess' in /nodes/own/python on b; choose from bert"
    ):
        made.check_plugins("/nodes/own/python", [], "b")


def test_on_this_machine_an_unknown_name_is_refused_at_once():
    with pytest.raises(UsageError, match=r"^--task: unknown 'chess'; choose from bert"):
        program("--task", "chess", launcher="local")


def test_unknown_plugin_is_refused_early_where_jobs_share_python(monkeypatch):
    monkeypatch.setenv("MUSTER_PYTHON", sys.executable)
    with pytest.raises(UsageError, match=r"^--task: unknown 'checkers'; choose from bert"):
        program("--task", "checkers")


def test_a_node_says_what_its_packages_add(python):
    assert node_facts.plugins(str(python)) == ["muster.compressors:sign", "muster.tasks:chess"]


def test_a_launcher_of_a_package_has_the_name_of_its_module(tmp_path, monkeypatch):
    """Later commands find a run's launcher by that name."""
    text = "[muster.launchers]\nmine = launch.launchers.local:build\nlocal = no_such_module:build\n"
    package(tmp_path, "other", text)
    monkeypatch.syspath_prepend(tmp_path)
    named = r"^--launcher mine: its class is in launch\.launchers\.local"
    with pytest.raises(UsageError, match=named):
        launcher_of(CommandLine.parse(["--launcher", "mine"]))
    assert "local" in own_names("launch.launchers")
    assert launcher_of(CommandLine.parse(["--launcher", "local"])).name == "local"


def test_each_sweep_run_with_unknown_sync_mode_is_named(python):
    flags = ["--launcher", "local", "--python", str(python), "--task", "synthetic"]
    with pytest.raises(UsageError) as refused:
        from_grid(["sync=ddp,dpp,nosync"], flags, [], None)
    first, second = str(refused.value).splitlines()
    assert first.startswith(f"synthetic-sync-dpp: --sync: unknown 'dpp' in {python}; choose from ")
    assert second.startswith("synthetic-sync-nosync: --sync: unknown 'nosync' in ")
