"""What a user's program gets: variables, also Python's own, a prologue, and a wrapper command."""

import sys
from contextlib import chdir
from pathlib import Path

import pytest

from launch.submit import main
from tests.commands import refused
from tests.launch.submit import run_well, submit
from tests.written import executable, write

LOCAL = ["--launcher", "local"]


@pytest.mark.slow
def test_pythons_own_variables_are_for_the_program(project, monkeypatch):
    for name in ("SAFEPATH", "DONTWRITEBYTECODE", "NOUSERSITE", "DEVMODE"):
        monkeypatch.setenv(f"PYTHON{name}", "1")
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    text = "import mine, os, sys\nprint(mine.x, sys.flags.safe_path, sys.flags.optimize)"
    write(project, {"other.py": text, "elsewhere/mine.py": "x = 'found'"})
    flags = [*LOCAL, "--nodes", "2"]
    out = run_well(*flags, "--", "other.py", cwd=project, python=sys.executable)
    assert "found True 2" in out


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["torchrun", "accelerate"])
def test_modules_of_the_project_are_not_taken_for_libraries(project, workers):
    for name in ("logging", "yaml", "torch", "accelerate"):
        (project / f"{name}.py").write_text("raise ValueError('not what torchrun wants')")
    (project / "other.py").write_text("print('well')")
    flags = [*LOCAL, "--workers", workers]
    assert "well" in run_well(*flags, "--", "other.py", cwd=project, python=sys.executable)


def environment(project: Path, *flags: str) -> dict[str, str]:
    """Return the environment variables of a worker of a run with these flags."""
    executable(project / "show.sh", "#!/bin/sh\nenv -0\n")
    one = [*LOCAL, "--workers", "manual", "--overwrite", "--run-id", "env", *flags]
    run_well(*one, "--", "./show.sh", cwd=project)
    text = (project / "logs" / "env" / "workers" / "rank_00000.out").read_text()
    return dict(pair.partition("=")[::2] for pair in text.split("\0"))


def test_variables_reach_the_program_and_nobody_else(project, monkeypatch):
    monkeypatch.setenv("PASSED", "passed on")
    monkeypatch.setenv("OF_THE_SHELL", "as it is")
    (project / ".env").write_text('# a comment\nexport A="from the file"\nB=two words\n')
    flags = ["--env", "TOKEN=s3cret, 'quoted'", "--env", "PASSED", "--env-file", ".env"]
    flags += ["--env", "LINES=one\nHOME=two"]
    found = environment(project, *flags)
    assert found["TOKEN"] == "s3cret, 'quoted'" and found["PASSED"] == "passed on"
    assert found["A"] == "from the file" and found["B"] == "two words"
    assert "MUSTER_ENV" not in found and found["OF_THE_SHELL"] == "as it is"
    assert found["LINES"] == "one\nHOME=two" and found["HOME"] != "two"


@pytest.mark.parametrize("flag", ["--env-file", "--prologue"])
def test_non_utf8_env_file_or_prologue_is_refused_by_line(project, flag):
    (project / "latin").write_bytes(b"A=1\nB=caf\xe9\n")
    with chdir(project):
        error = refused(main, *LOCAL, flag, "latin", "--", "train.py")
    assert error == f"error: {flag} latin:2: not valid UTF-8; save the file as UTF-8\n"
    assert not (project / "logs").exists()


def test_the_failure_of_a_prologue_is_named(project):
    (project / "prologue.sh").write_text("echo no such module >&2\nfalse\n")
    flags = [*LOCAL, "--workers", "manual", "--prologue", "prologue.sh"]
    code, _, err = submit(*flags, "--", "ls", cwd=project)
    assert code != 0
    assert "--prologue on node0 ended with exit code 1:" in err and "no such module" in err


@pytest.mark.slow
def test_a_prologue_that_ends_the_shell_is_named(project):
    (project / "prologue.sh").write_text("export A=1\nexit 0\n")
    flags = [*LOCAL, "--workers", "manual", "--prologue", "prologue.sh"]
    code, _, err = submit(*flags, "--", "ls", cwd=project)
    assert code != 0
    assert "--prologue on node0 ends the shell" in err


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--env", "--env-file", "--prologue"])
def test_the_tmpdir_that_is_asked_for_is_the_programs(project, flag):
    (project / "variables").write_text("TMPDIR=/scratch/mine\n")
    (project / "prologue.sh").write_text("export TMPDIR=/scratch/mine\n")
    values = {"--env": "TMPDIR=/scratch/mine", "--env-file": "variables"}
    found = environment(project, flag, values.get(flag, "prologue.sh"))
    assert found["TMPDIR"] == "/scratch/mine"


def test_a_command_stands_in_front_of_every_worker(project):
    text = '#!/bin/sh\nexport WRAPPED="$1"\nshift\nexec "$@"\n'
    wrapper = executable(project / "stand-in", text)
    found = environment(project, "--wrap", f"{wrapper} {{run_dir}} env STAGE=wrapped")
    assert (found["WRAPPED"], found["STAGE"]) == (str(project / "logs" / "env"), "wrapped")
