"""`-- python train.py` means `-- train.py`, unless Python is given options other than -u."""

import json
import os
import sys
from pathlib import Path

import pytest

from launch.programs import python_choice
from launch.programs.command_line import CommandLine
from launch.studies.cell_runs import command_of
from launch.studies.cells import from_grid
from muster.errors import UsageError
from tests.commands import call, cause_in, refusal
from tests.launch.submit import JOBS, only_run, submit
from tests.written import executable, write

LOCAL = ["--launcher", "local", "--nodes", "2", "--workers", "manual"]
REWRITTEN = {
    "python train.py --lr 1": (None, "train.py --lr 1"),
    "python3 -u train.py": (None, "train.py"),
    "python -u -u ./a/train.py -O": (None, "./a/train.py -O"),
    "python -m package.module -m x": (None, "-m package.module -m x"),
    "python -u -m package": (None, "-m package"),
    "python3.12 train.py": ("python3.12", "train.py"),
    "/opt/conda/bin/python -u train.py": ("/opt/conda/bin/python", "train.py"),
    "./venv/bin/python3 train.py": ("./venv/bin/python3", "train.py"),
    "venv/bin/python3.13t -m package": ("venv/bin/python3.13t", "-m package"),
}


@pytest.mark.parametrize("typed", REWRITTEN)
def test_python_in_front_of_a_script_means_the_script(typed):
    python, words = REWRITTEN[typed]
    line = CommandLine.parse(["--", *typed.split()])
    assert (line.own.python, list(line.words)) == (python, words.split())


COMMANDS = [
    *("python", "python -", "python -V", "python --version", "python -u", "python -W"),
    *("python -c 1/0", "python -uc 1/0", "python -O -c 1/0", "python tool", "python data.json"),
    *("env python train.py", "uv run python train.py", "conda run -n a python train.py"),
    *("pythonista train.py", "bash -c", "./python.sh train.py", "ipython train.py"),
    "python --check-hash-based-pycs never train.py",
    *("python -O train.py", "/a/python -uBs train.py", "python -W error -m package", "python -m"),
]


@pytest.mark.parametrize("typed", COMMANDS)
def test_any_other_command_stays_as_it_is(typed):
    line = CommandLine.parse(["--", *typed.split()])
    assert (line.own.python, list(line.words)) == (None, typed.split())


def test_another_interpreter_beside_python_is_refused_with_what_to_type():
    words = ["--", "/b/python", "-u", "train.py", "--name", "a b"]
    assert refusal(CommandLine.parse, ["--python", "/a/python", *words]).endswith(
        "; type --python /b/python -- train.py --name 'a b'"
    )
    line = CommandLine.parse(["--python", "/b/./python", *words])
    assert line.words[0] == "train.py"
    line = CommandLine.parse(["--python", "/a/python", "--", "python", "train.py"])
    assert (line.own.python, [*line.words]) == ("/a/python", ["train.py"])


def test_a_sweep_of_it_is_named_and_started_like_its_script(tmp_path):
    write(tmp_path, {"train.py": ""})
    script = str(tmp_path / "train.py")
    words = ["--launcher=local", "--workers=manual"]
    sweep = from_grid(["lr=1,2"], words, ["python", "-u", script], None)
    assert sweep.name.startswith("train-lr-") and sweep.cells[0].id == "train-lr-1"
    assert sweep.name == from_grid(["lr=1,2"], words, [script], None).name
    sweep.folder = tmp_path
    command = command_of(sweep, sweep.cells[0])
    assert command[-6:] == ["--", "python", "-u", script, "--lr", "1"]
    assert "--run-id=train-lr-1" in command[:-6]


def test_a_python_that_is_not_here_is_refused_before_the_start(tmp_path):
    write(tmp_path, {"train.py": "", "bin/data": ""})
    code, out, err = submit(*LOCAL, "--python", "nopython", "--", "train.py", cwd=tmp_path)
    assert (code, out) == (2, "")
    assert err.startswith("error: --python nopython: ")
    assert not (tmp_path / "logs").exists()
    for name in ("/usr/bin/nopython", "bin/data"):
        program = CommandLine.parse(["--python", name, "--", "train.py"]).program(tmp_path)
        with pytest.raises(UsageError, match=f"^--python {name}: no such program"):
            program.check(sys.executable, runs_here=True)
    flags = ["--launcher=local", "--workers=manual", "--python=nopython"]
    with pytest.raises(UsageError, match=r"^--python nopython: no such program"):
        from_grid(["lr=1,2"], flags, [str(tmp_path / "train.py")], None)


@pytest.mark.parametrize("flag", ["--prologue", "--wrap"])
def test_python_of_prologue_or_wrapper_is_not_checked_locally(tmp_path, flag):
    write(tmp_path, {"train.py": "", "setup.sh": ""})
    value = str(tmp_path / "setup.sh") if flag == "--prologue" else "env"
    words = ["--python", "python9", flag, value, "--workers", "manual", "--", "train.py"]
    CommandLine.parse(words).program(tmp_path).check(sys.executable, runs_here=True)


def noted(folder: Path, *argv: str) -> None:
    python_choice.say_once.cache_clear()
    line = CommandLine.parse(["--workers", "manual", "--logs-dir", str(folder), *argv])
    program = line.program(folder)
    program.check(sys.executable)
    program.announce(is_sent=False)


def test_another_python_on_path_is_noted(tmp_path, monkeypatch, capsys):
    write(tmp_path, {"train.py": ""})
    other = executable(tmp_path / "other" / "bin" / "python", "#!/bin/sh\nexit 1\n")
    active = executable(tmp_path / "venv" / "bin" / "python", "#!/bin/sh\nexit 0\n")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    noted(tmp_path, "--", "python", "train.py")
    of_active = f"python: {active}, from VIRTUAL_ENV, although python on PATH is {other}; change it"
    assert capsys.readouterr().err == (
        f"{of_active} with --python\n"
        f"note: python on PATH is {other}, but the program runs with {active}; to use the "
        f"former: --python {other}\n"
    )
    beside = ["--python", str(active), "--", "python", "train.py"]
    for words in (["--", "train.py"], ["--", "python", "-c", "1"]):
        noted(tmp_path, *words)
        assert capsys.readouterr().err == f"{of_active} with --python\n"
    noted(tmp_path, *beside)
    monkeypatch.setenv("PATH", f"{active.parent}{os.pathsep}{os.environ['PATH']}")
    noted(tmp_path, "--", "python", "train.py")
    assert capsys.readouterr().err == ""


FAILS = """import os, time
if os.environ['RANK'] == '1': raise ValueError('bad sample')
time.sleep(9999)
"""


def test_a_run_of_it_shows_the_traceback_and_records_the_script(tmp_path):
    write(tmp_path, {"train.py": FAILS})
    code, _, err = submit(*LOCAL, "--", "python", "-u", "train.py", cwd=tmp_path)
    assert code == 1 and cause_in(err) == "ValueError: bad sample", err
    assert err.count("Traceback") == 1
    run_dir = only_run(tmp_path / "logs")
    (first, *_) = json.loads((run_dir / "launch.json").read_text())["nodes"]
    assert first["argv"][-1] == "train.py" and run_dir.name.endswith("-train-2x1")


def test_options_of_python_take_effect_in_each_rank(tmp_path):
    write(
        tmp_path, {"train.py": "import os\nopen(os.environ['RANK'], 'x').write(str(__debug__))\n"}
    )
    code, _, err = submit(*LOCAL, "--", "python", "-O", "train.py", cwd=tmp_path)
    assert code == 0, err
    assert [(tmp_path / rank).read_text() for rank in "01"] == ["False", "False"]


SHELL = """if [ "$RANK" = 1 ]; then printf '\\033[2Jno data in /x\\n' >&2; exit 7; fi
exec sleep 9999
"""


def test_failed_shell_program_shows_last_output_of_its_rank(tmp_path):
    write(tmp_path, {"run.sh": SHELL})
    code, _, err = submit(*LOCAL, "--run-id", "r", "--", "bash", "run.sh", cwd=tmp_path)
    last = ["its output ends with:", r"  \x1b[2Jno data in /x"]
    last.append("all of its output: muster jobs logs r --rank 1")
    assert code == 7 and err.splitlines()[-3:] == last
    assert cause_in(err).endswith(": bash: exit code 7")
    status = call(sys.executable, JOBS, "status", "r", cwd=tmp_path)
    assert status.stdout.splitlines()[-3:] == last
