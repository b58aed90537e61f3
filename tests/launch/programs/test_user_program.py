"""What follows `--` is the program; what cannot start is refused before anything does."""

import os
import sys
from pathlib import Path

import pytest

from launch.programs import user_program
from launch.programs.command_line import CommandLine, split
from launch.programs.user_program import UserProgram
from muster.errors import UsageError
from tests.written import executable, write


def test_only_the_first_separator_counts_and_a_program_follows_it():
    assert split(["--nodes", "2"]) == (["--nodes", "2"], [])
    assert split(["-q", "--", "a.py", "--", "b"]) == (["-q"], ["a.py", "--", "b"])
    for argv in (["--nodes", "2", "--"], ["--", ""], ["--", "", "x"]):
        with pytest.raises(UsageError, match="no program follows after --"):
            split(argv)


def test_a_run_is_named_by_its_program():
    names = {("train.py",): "train", ("src/my train.py",): "my-train", ("./hello", "x"): "hello"}
    names["-m", "package.module"] = "package.module"
    assert {words: user_program.name_of(words) for words in names} == names


def check(folder: Path, *argv: str) -> None:
    program = CommandLine.of(["--run-id", "a", *argv]).program(folder)
    assert isinstance(program, UserProgram)
    program.check(sys.executable)
    program.spec(make=False, snapshot=False)


def refusal(folder: Path, *argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        check(folder, *argv)
    return str(caught.value)


PRELOAD = ["--workers", "preload"]


REFUSED = [
    ([], ["none.py"], "none.py: No such file or directory; looked in "),
    ([], ["wrong.py"], "wrong.py:2: '(' was never closed: it does not compile"),
    ([], ["-m", "none.module"], "-m none.module: no such module"),
    ([], ["-m"], "-m needs the name of a module: -- -m package.module"),
    ([], ["nothing"], "nothing: no such program"),
    (["--env", "1=2"], ["ls"], "--env '1': use NAME=VALUE, or NAME to pass on"),
    (["--env", "RANK=2"], ["ls"], "--env RANK: the launcher sets this variable for each w"),
    (["--env", "NOT_SET_HERE"], ["ls"], "--env NOT_SET_HERE: it is not set here"),
    (["--env-file", "none"], ["ls"], "--env-file none: no such file"),
    (["--wrap", "x {nothing}"], ["ls"], "--wrap: unknown {nothing}; known: {snapshot}, {run_"),
    ([*PRELOAD, "--wrap", "nice"], ["-m", "json"], "--workers preload forks the workers, and"),
    (PRELOAD, ["ls"], "--workers preload imports for Python programs, and ls is another comma"),
    ([*PRELOAD, "--preload", "a b"], ["ls"], "--preload 'a b': use names of modules"),
    (["--preload", "torch"], ["ls"], "--preload torch is for --workers preload; here it is"),
]


@pytest.mark.parametrize(("flags", "words", "message"), REFUSED)
def test_what_cannot_start_is_refused(tmp_path, flags, words, message):
    (tmp_path / "wrong.py").write_text("x = 1\nprint(\n")
    assert refusal(tmp_path, *flags, "--", *words).startswith(message)


def test_what_can_start_is_not(tmp_path):
    write(tmp_path, {"train.py": "print(1)", "package/module.py": "import nowhere"})
    executable(tmp_path / "run.sh", "#!/bin/sh\n")
    for line in ("train.py", "-m package.module", "-m json.tool", "./run.sh", "env"):
        check(tmp_path, "--", *line.split())


def test_the_programs_own_python_judges_its_syntax(tmp_path):
    (tmp_path / "later.py").write_text("x = 1\nsyntax of another version\n")
    flags, words = ["--launcher", "local", "--workers", "manual"], ["--", "later.py"]
    line = "later.py:2: invalid syntax: it does not compile"
    assert refusal(tmp_path, *flags, *words) == line
    assert refusal(tmp_path, *flags, "--python", sys.executable, *words) == line
    takes_all = executable(tmp_path / "python", "#!/bin/sh\ncat >/dev/null\n")  # a later version
    for python in (str(takes_all), "/of/the/nodes/python"):
        check(tmp_path, *flags, "--python", python, *words)


def test_the_active_environment_runs_the_program_if_it_can(tmp_path, capsys):
    for name, code in (("conda", 1), ("venv", 0)):  # only the latter has torch
        (tmp_path / name / "bin").mkdir(parents=True)
        executable(tmp_path / name / "bin" / "python", f"#!/bin/sh\nexit {code}\n")
    conda = {"CONDA_PREFIX": str(tmp_path / "conda")}
    both = {**conda, "VIRTUAL_ENV": str(tmp_path / "venv")}
    own = user_program.own_python
    assert own(tmp_path, "torchrun", both) == str(tmp_path / "venv" / "bin" / "python")
    assert own(tmp_path, "torchrun", conda) is None
    assert "conda/bin/python has no torch" in capsys.readouterr().err
    assert own(tmp_path, "manual", conda) == str(tmp_path / "conda" / "bin" / "python")
    assert own(tmp_path, "torchrun", {}) is None


def test_an_environment_of_a_stranger_in_the_folder_is_not_run(tmp_path, capsys):
    """As in /tmp, where anybody may make a .venv."""
    if os.geteuid():
        pytest.skip("only root can give a file away")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    python = tmp_path / ".venv" / "bin" / "python"
    executable(python, "#!/bin/sh\nexit 0\n")
    own = user_program.own_python
    assert own(tmp_path, "manual", {}) == str(python)
    os.chown(tmp_path / ".venv", 65_534, -1)
    assert own(tmp_path, "manual", {}) is None
    assert "/.venv/bin/python belongs to another user; where you trust" in capsys.readouterr().err
    assert own(tmp_path, "manual", {"VIRTUAL_ENV": str(tmp_path / ".venv")}) == str(python)
    os.chown(tmp_path, 65_534, -1)  # a colleague's project, with its own environment
    assert own(tmp_path, "manual", {}) == str(python)
