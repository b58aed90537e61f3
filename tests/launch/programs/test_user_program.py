"""What follows `--` is the program; what cannot start is refused before anything does."""

import sys
from pathlib import Path

import pytest

from launch.programs import user_program
from launch.programs.command_line import CommandLine, split
from launch.programs.user_program import UserProgram
from muster.errors import UsageError


def test_only_the_first_separator_counts_and_a_program_follows_it():
    assert split(["--nodes", "2"]) == (["--nodes", "2"], [])
    assert split(["-q", "--", "a.py", "--", "b"]) == (["-q"], ["a.py", "--", "b"])
    for argv in (["--nodes", "2", "--"], ["--", ""], ["--", "", "x"]):
        with pytest.raises(UsageError, match="no program follows after --"):
            split(argv)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["train.py"], "train"),
        (["src/my train.py"], "my-train"),
        (["-m", "package.module"], "package.module"),
        (["./hello", "x"], "hello"),
    ],
)
def test_a_run_is_named_by_its_program(words, name):
    assert user_program.name_of(words) == name


def check(folder: Path, *argv: str) -> None:
    program = CommandLine.of(argv).program(folder)
    assert isinstance(program, UserProgram)
    program.check(sys.executable)


def refusal(folder: Path, *argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        check(folder, *argv)
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.py"], "none.py: No such file or directory; looked in "),
        (["wrong.py"], "wrong.py:2: '(' was never closed: it does not compile"),
        (["-m", "none.module"], "-m none.module: no such module"),
        (["-m"], "-m needs the name of a module: -- -m package.module"),
        (["nothing"], "nothing: no such program"),
    ],
)
def test_what_cannot_start_is_refused(tmp_path, words, message):
    (tmp_path / "wrong.py").write_text("x = 1\nprint(\n")
    assert refusal(tmp_path, "--", *words).startswith(message)


def test_what_can_start_is_not(tmp_path):
    (tmp_path / "train.py").write_text("print(1)")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "module.py").write_text("import nowhere")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    for line in ("train.py", "-m package.module", "-m json.tool", "./run.sh", "env"):
        check(tmp_path, "--", *line.split())


def python_that_takes_all(folder: Path) -> str:
    """A stand-in for one of a later version: to it, no syntax is wrong."""
    python = folder / "python"
    python.write_text("#!/bin/sh\ncat >/dev/null\n")
    python.chmod(0o755)
    return str(python)


def test_the_programs_own_python_judges_its_syntax(tmp_path):
    (tmp_path / "later.py").write_text("x = 1\nsyntax of another version\n")
    flags, words = ["--launcher", "local", "--workers", "manual"], ["--", "later.py"]
    line = "later.py:2: invalid syntax: it does not compile"
    assert refusal(tmp_path, *flags, *words) == line
    assert refusal(tmp_path, *flags, "--python", sys.executable, *words) == line
    check(tmp_path, *flags, "--python", python_that_takes_all(tmp_path), *words)
    check(tmp_path, *flags, "--python", "/of/the/nodes/python", *words)


def test_the_active_environment_runs_the_program_if_it_can(tmp_path, capsys):
    for name, has_torch in (("conda", False), ("venv", True)):
        (tmp_path / name / "bin").mkdir(parents=True)
        python = tmp_path / name / "bin" / "python"
        python.write_text(f"#!/bin/sh\nexit {int(not has_torch)}\n")
        python.chmod(0o755)
    conda = {"CONDA_PREFIX": str(tmp_path / "conda")}
    both = {**conda, "VIRTUAL_ENV": str(tmp_path / "venv")}
    own = user_program.own_python
    assert own(tmp_path, "torchrun", both) == str(tmp_path / "venv" / "bin" / "python")
    assert own(tmp_path, "torchrun", conda) is None
    assert "conda/bin/python has no torch" in capsys.readouterr().err
    assert own(tmp_path, "manual", conda) == str(tmp_path / "conda" / "bin" / "python")
    assert own(tmp_path, "torchrun", {}) is None
