"""A program runs with its user's Python, if that can start the workers."""

import os
import sys
from pathlib import Path

import pytest

from launch.programs import python_choice
from launch.programs.command_line import CommandLine
from launch.programs.python_choice import PythonChoice, choose, problems, workers_environment
from launch.programs.user_program import UserProgram
from tests.written import executable, write

OWN = str(Path(sys.executable).parent)


@pytest.fixture(autouse=True)
def _forgets():
    """Forget printed notes, and what is known about each Python, before each test."""
    python_choice.say_once.cache_clear()
    python_choice._run_code.cache_clear()


@pytest.fixture
def site(tmp_path) -> Path:
    """A folder that `module load` might put on PYTHONPATH; its torch cannot be imported."""
    return write(tmp_path / "site", {"torch/__init__.py": "import nowhere"}) / "."


def bare(folder: Path, name: str = "python") -> str:
    """A real Python without packages."""
    base = Path(sys.base_prefix, "bin", "python3")
    return str(executable(folder / "bin" / name, f'#!/bin/sh\nexec {base} -S "$@"\n'))


def lacking(folder: Path) -> str:
    return str(executable(folder / "bin" / "python", "#!/bin/sh\nexit 1\n"))


def having(folder: Path, name: str = "python") -> str:
    return str(executable(folder / "bin" / name, "#!/bin/sh\nexit 0\n"))


def chosen_python(tmp_path: Path, workers: str = "torchrun", **env: object) -> PythonChoice:
    env = {"PATH": "/none", **{name: str(value) for name, value in env.items()}}
    return choose(workers, workers_environment(tmp_path, {}, env, is_over_ssh=False))


def test_the_active_environment_runs_the_program_if_it_can(tmp_path, capsys):
    conda, venv = lacking(tmp_path / "conda"), having(tmp_path / "venv")
    both = {"CONDA_PREFIX": tmp_path / "conda", "VIRTUAL_ENV": tmp_path / "venv"}
    assert chosen_python(tmp_path, **both) == PythonChoice(venv)
    assert capsys.readouterr().err == ""
    conda_alone = {"CONDA_PREFIX": tmp_path / "conda"}
    for _ in range(2):  # as for the runs of a sweep
        assert chosen_python(tmp_path, **conda_alone) == PythonChoice(None, "Muster's own")
    assert capsys.readouterr().err.count("conda/bin/python has no torch") == 1
    assert chosen_python(tmp_path, "manual", **conda_alone) == PythonChoice(conda)


def test_an_active_environment_that_is_not_first_on_path_is_named(tmp_path):
    """As after `conda activate` in a venv, or in a shell that has inherited VIRTUAL_ENV."""
    venv, conda = having(tmp_path / "venv"), having(tmp_path / "conda")
    both = {"CONDA_PREFIX": tmp_path / "conda", "VIRTUAL_ENV": tmp_path / "venv"}
    why = f"from VIRTUAL_ENV, although python on PATH is {conda}"
    assert chosen_python(tmp_path, **both, PATH=Path(conda).parent) == PythonChoice(venv, why)
    assert chosen_python(tmp_path, **both, PATH=Path(venv).parent) == PythonChoice(venv)
    other = having(tmp_path / "usr", "python3")
    why = f"from CONDA_PREFIX, although python3 on PATH is {other}"
    alone = {"CONDA_PREFIX": tmp_path / "conda", "PATH": Path(other).parent}
    assert chosen_python(tmp_path, **alone) == PythonChoice(conda, why)


@pytest.mark.needs("root")  # only root may give files away
def test_an_environment_of_a_stranger_in_the_folder_is_not_run(tmp_path, capsys):
    """As in /tmp, where anybody may make a .venv."""
    python = having(tmp_path / ".venv")
    assert chosen_python(tmp_path) == PythonChoice(python, "from the project")
    os.chown(tmp_path / ".venv", 65_534, -1)
    assert chosen_python(tmp_path) == PythonChoice(None, "Muster's own")
    assert "/.venv/bin/python belongs to another user" in capsys.readouterr().err
    assert chosen_python(tmp_path, VIRTUAL_ENV=tmp_path / ".venv") == PythonChoice(python)
    os.chown(tmp_path, 65_534, -1)  # a colleague's project, with its own environment
    assert chosen_python(tmp_path) == PythonChoice(python, "from the project")


def test_python_of_module_load_comes_before_musters_own(tmp_path):
    python = having(tmp_path / "pytorch", "python3")
    path = f"{Path(lacking(tmp_path / 'system')).parent}:{Path(python).parent}"
    for workers in ("torchrun", "manual"):
        assert chosen_python(tmp_path, workers, PATH=path) == PythonChoice(python, "found on PATH")
    project = having(tmp_path / ".venv")
    assert chosen_python(tmp_path, PATH=path) == PythonChoice(project, "from the project")


def test_python_on_path_without_torch_is_not_chosen(tmp_path, capsys):
    path = Path(lacking(tmp_path / "system")).parent
    for workers in ("torchrun", "manual"):
        assert chosen_python(tmp_path, workers, PATH=path) == PythonChoice(None, "Muster's own")
    assert chosen_python(tmp_path, PATH=OWN) == PythonChoice(None)  # it is the active one
    assert capsys.readouterr().err == ""


def test_packages_of_pythonpath_are_found_as_workers_find_them(tmp_path, site):
    python = bare(tmp_path / "module")
    cases = [
        ({"PYTHONPATH": str(site)}, {}, []),
        ({}, {"PYTHONPATH": str(site)}, []),  # --env PYTHONPATH=...
        ({}, {"PYTHONPATH": "site"}, []),  # from the folder that workers start in
        (
            {},
            {},
            [f"{python} has no torch, which --workers torchrun needs\ntip: choose another "],
        ),
    ]
    for env, given, lines in cases:
        asked = workers_environment(tmp_path, given, env, is_over_ssh=False)
        shown = list(problems(python, "torchrun", asked))
        assert len(shown) == len(lines)
        assert all(map(str.startswith, shown, lines)), shown


def test_pythonhome_that_keeps_python_from_starting_is_named(tmp_path):
    python = bare(tmp_path)
    environment = workers_environment(tmp_path, {"PYTHONHOME": "/old"}, {}, is_over_ssh=False)
    refusal = f"{python} does not start with PYTHONHOME=/old\ntip: unset it"
    assert list(problems(python, "torchrun", environment)) == [refusal]


def test_a_folder_that_only_this_command_is_in_gives_no_packages(tmp_path, site, monkeypatch):
    monkeypatch.chdir(site)
    asked = workers_environment(site, {}, {}, is_over_ssh=False)
    assert list(problems(bare(tmp_path / "module"), "torchrun", asked))


def test_pythonpath_of_this_shell_does_not_reach_nodes_over_ssh(tmp_path, site, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(site))
    python = bare(tmp_path / "module")
    asked = workers_environment(tmp_path, {}, os.environ, is_over_ssh=True)
    (line,) = problems(python, "torchrun", asked)
    assert line == (
        f"{python} finds torch through PYTHONPATH, which is not passed to nodes over ssh\n"
        "tip: pass it on: --env PYTHONPATH"
    )
    passed_on = {"PYTHONPATH": str(site)}
    asked = workers_environment(tmp_path, passed_on, os.environ, is_over_ssh=True)
    assert list(problems(python, "torchrun", asked)) == []


SAID = [
    (["train.py"], False, "python: /own/python, Muster's own; change it with --python\n"),
    (
        ["train.py"],
        True,
        "python: /own/python, Muster's own on each node; change it with --python\n",
    ),
    (["./run.sh"], False, ""),  # which does not use it
    (["--python", "/my/python", "train.py"], True, ""),
    (["--quiet", "train.py"], False, ""),
]


@pytest.mark.parametrize(("words", "is_sent", "line"), SAID)
def test_a_python_that_is_not_the_active_one_is_named(
    tmp_path, monkeypatch, capsys, words, is_sent, line
):
    write(tmp_path, {"train.py": "", "none/x": ""})
    executable(tmp_path / "run.sh", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    *flags, word = words
    argv = ["--run-id", "a", "--launcher", "local", *flags, "--", word]
    for _ in range(2):  # once, for all runs of a sweep
        program = CommandLine.parse(argv).program(tmp_path)
        assert isinstance(program, UserProgram)
        program.check("/own/python")
        program.announce(is_sent=is_sent)
    assert capsys.readouterr().err == line
