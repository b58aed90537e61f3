"""The words after `--` are the program; one that cannot start is refused before a run begins."""

import json
import re
import sys
import zipapp
from pathlib import Path

import pytest
from hypothesis import strategies as st

from configs.settings.launch import name_problems
from launch.leading.leader import with_copies
from launch.programs import python_choice, user_program
from launch.programs.command_line import CommandLine, split_program
from launch.programs.user_program import UserProgram
from launch.spec import LaunchSpec
from muster.errors import UsageError
from muster.run_files import SNAPSHOT
from tests.commands import refusal
from tests.fuzzing import fuzzed
from tests.written import executable, write


def test_only_the_first_separator_counts_and_a_program_follows_it():
    assert split_program(["--nodes", "2"]) == (["--nodes", "2"], [])
    assert split_program(["-q", "--", "a.py", "--", "b"]) == (["-q"], ["a.py", "--", "b"])
    for argv in (["--nodes", "2", "--"], ["--", ""], ["--", "", "x"]):
        with pytest.raises(UsageError, match=r"(after|follows) --"):
            split_program(argv)


def test_a_run_is_named_by_its_program():
    names = {("train.py",): "train", ("src/my train.py",): "my-train", ("./hello", "x"): "hello"}
    names["-m", "package.module"] = "package.module"
    names |= {("Übung 1.py",): "Ubung-1", ("训练.py",): "program", ("-x.py",): "x"}
    names |= {(".py",): "program", ("100%.py",): "100", ("..py",): "program"}
    assert {words: user_program.name_of(words) for words in names} == names


@fuzzed(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1))
def test_any_program_s_name_makes_a_run_s_name(name):
    plain = user_program.name_of([name])
    assert list(name_problems("", f"20260821-143000-{plain}-4x1")) == []
    assert list(name_problems("", f"{plain}-lr-1e-4")) == []  # of a sweep
    assert len(plain) <= 60


def check(folder: Path, *argv: str) -> None:
    program = CommandLine.parse(["--run-id", "a", *argv]).program(folder)
    assert isinstance(program, UserProgram)
    program.check(sys.executable)
    program.spec("a", is_sent=False, snapshot=None)


FINDER = """
import sys
MAPPING = {"mine": "PROJECT/src/mine"}
class Finder:
    find_spec = lambda *_: None
sys.meta_path.append(Finder)
sys.path.append("__editable__.mine-1.0.finder.__path_hook__")  # setuptools adds it, no folder
"""


@pytest.mark.parametrize(("script", "path", "noted"), [
    ("train.py", None, "src"),
    ("train.py", "PROJECT:PROJECT/lib", "lib, src"),
    ("src/train.py", "lib:PROJECT/lib", None),
    ("run/train.py", "src:PROJECT", "."),
])  # fmt: skip
def test_imports_that_bypass_the_snapshot_are_noted(
    tmp_path, monkeypatch, capsys, script, path, noted
):
    """Through an absolute PYTHONPATH, or the finder of `pip install -e`, which FINDER imitates."""
    python_choice.say_once.cache_clear()
    project = tmp_path / "project"
    files = dict.fromkeys(("src/mine/__init__.py", "lib/a.py", ".git", script), "")
    write(project, files)
    monkeypatch.chdir(project)
    site = write(tmp_path / "site", {"sitecustomize.py": FINDER.replace("PROJECT", str(project))})
    given = ":".join([*([path.replace("PROJECT", str(project))] if path else []), str(site)])
    flags = ["--python", sys.executable, "--env", f"PYTHONPATH={given}"]
    program = CommandLine.parse([*flags, "--", script]).program(project)
    program.announce(is_sent=False, is_copied=True)
    notes = re.findall(r"imports from (.*?) in the", capsys.readouterr().err)
    assert notes == ([noted] if noted else [])
    absolute = str(project / script)
    CommandLine.parse([*flags, "--", absolute]).program(project).announce(
        is_sent=False, is_copied=True
    )
    assert f"{absolute} itself" in capsys.readouterr().err


PRELOAD = ["--workers", "preload"]


def test_program_that_can_start_is_taken(tmp_path):
    write(tmp_path, {"train.py": "print(1)", "package/module.py": "import nowhere"})
    executable(tmp_path / "run.sh", "#!/bin/sh\n")
    for line in ("train.py", "-m package.module", "-m json.tool", "./run.sh", "env"):
        check(tmp_path, "--", *line.split())


def test_folder_or_archive_with_main_is_a_python_program(tmp_path, monkeypatch):
    write(tmp_path, {"app/__main__.py": "print(1)", "wrong/__main__.py": "print(", "none/x": ""})
    for name in ("app.pyz", "runs.pyz"):
        zipapp.create_archive(tmp_path / "app", tmp_path / name, "/usr/bin/python3")
    (tmp_path / "app.pyz").chmod(0o644)
    for word in ("app", "./app/", "app.pyz", "./app.pyz", "runs.pyz"):
        check(tmp_path, "--", word)
        check(tmp_path, *PRELOAD, "--", word)
        assert user_program.parse_program([word, "-x"], tmp_path).argv == (word, "-x")
    # a command stays a command: a file with its own Python, or a name on PATH
    assert user_program.parse_program(["./runs.pyz"], tmp_path).argv == ("--exec", "./runs.pyz")
    executable(tmp_path / "bin" / "app", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    assert user_program.parse_program(["app"], tmp_path).argv == ("--exec", "app")
    assert refusal(check, tmp_path, "--", "./wrong").startswith("./wrong/__main__.py:1: ")
    for word in ("./none", "none"):
        assert "__main__.py" in refusal(check, tmp_path, "--", word)


def test_only_the_nodes_know_what_an_image_has(tmp_path, capsys):
    """Neither its programs nor its Python are looked for here, whatever this machine has."""
    write(tmp_path, {"train.py": "print(", "image/x": ""})
    flags = ["--container", "image", "--container-mounts", "/data,/a:/b", "--include", "*.bin"]
    for line in ("train.py", "-m none.module", "nothing"):
        check(tmp_path, *flags, "--", *line.split())
        check(tmp_path, *flags, "--python", "nopython", "--", *line.split())
    own = ["--run-id", "a", "--logs-dir", str(tmp_path / "logs")]
    for is_sent, project in ((False, str(tmp_path)), (True, "")):
        program = CommandLine.parse([*own, *flags, "--", "train.py"]).program(tmp_path)
        spec = program.spec("a", is_sent=is_sent, snapshot=None)
        assert spec.program.image == str(tmp_path / "image") and spec.program.python == "python3"
        assert spec.program.mounts == ("/data", "/a:/b") and spec.program.project == project
        assert LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    program.announce(is_sent=False)
    assert capsys.readouterr().err.startswith(f"python: python3 of {tmp_path}/image; ")


def test_python_program_of_a_snapshot_stays_one(tmp_path):
    """Even in a snapshot on the nodes' own disks, whose path does not exist here."""
    write(tmp_path, {"app/__main__.py": "print(1)"})
    line = CommandLine.parse(["--run-id", "a", "--logs-dir", str(tmp_path / "logs"), "--", "app"])
    spec = with_copies(line.program(tmp_path), "a", takes_snapshot=True, is_sent=True)
    assert spec.program.argv == ("app",) and spec.program.cwd == "logs/.snapshot-a"


@pytest.mark.parametrize("words", [["--", "train.py"], []], ids=["users", "own"])
def test_a_program_is_copied_by_who_leads_its_run_alone(tmp_path, words):
    """Only a user's program is copied: Muster's own runs from its checkout."""
    write(tmp_path, {"train.py": ""})
    logs = tmp_path / "logs"
    program = CommandLine.parse([f"--logs-dir={logs}", *words]).program(tmp_path)
    spec = program.spec("a", is_sent=False, snapshot=None)
    assert spec.run_dir == logs / "a" and not logs.exists()
    with_copies(program, "a", takes_snapshot=True)
    assert SNAPSHOT.path(logs / "a").exists() == bool(words)


def test_the_programs_own_python_judges_its_syntax(tmp_path):
    (tmp_path / "later.py").write_text("x = 1\nsyntax of another version\n")
    flags, words = ["--launcher", "local", "--workers", "manual"], ["--", "later.py"]
    for python in ([], ["--python", sys.executable]):
        assert refusal(check, tmp_path, *flags, *python, *words).startswith(
            "later.py:2: does not compile: invalid syntax"
        )
    takes_all = executable(tmp_path / "python", "#!/bin/sh\ncat >/dev/null\n")  # a later version
    for python in (str(takes_all), "/of/the/nodes/python"):
        check(tmp_path, *flags, "--python", python, *words)


def test_a_program_beside_the_chosen_python_is_found(tmp_path):
    """As if its environment were active: `-- mytool` may be from a package installed there."""
    executable(tmp_path / "env" / "bin" / "python", "#!/bin/sh\n")
    executable(tmp_path / "env" / "bin" / "mytool", "#!/bin/sh\n")
    flags = ["--launcher", "local", "--workers", "manual"]
    assert refusal(check, tmp_path, *flags, "--", "mytool").startswith("mytool: ")
    check(tmp_path, *flags, "--python", str(tmp_path / "env" / "bin" / "python"), "--", "mytool")


def test_program_of_a_prologue_is_not_missed_before_it_ran(tmp_path):
    (tmp_path / "train.py").write_text("")
    (tmp_path / "prologue.sh").write_text("module load pytorch\n")
    has_nothing = executable(tmp_path / "python", '#!/bin/sh\ncat >/dev/null\n[ "$3" != torch ]\n')
    words = ["--launcher", "local", "--python", str(has_nothing)]
    assert "has no torch" in refusal(check, tmp_path, *words, "--", "train.py")
    prologue = ["--prologue", str(tmp_path / "prologue.sh")]
    check(tmp_path, *words, *prologue, "--", "train.py")
