"""What a sweep is given: refusals, dry runs, and the documentation's examples."""

import re
import shlex
from contextlib import chdir
from pathlib import Path

import pytest

from launch import sweep as command
from tests import commands
from tests.fork_server import interpreter
from tests.launch.sweeps import (
    EXAMPLES,
    LOCAL,
    PAGE,
    SHOWN_PROGRAM,
    cells,
    folder_of,
    new_project,
    sweep,
)
from tests.pages import fences, text_of


@pytest.fixture
def project(tmp_path) -> Path:
    return new_project(tmp_path)


def refused(project: Path, *words: str) -> str:
    """The error; nothing was started or made."""
    with chdir(project):
        error = commands.refused(command.main, *words)
    assert not (project / "logs").exists(), error
    return error


TWO = ["--over", "lr=1,2", "--at-once", "2"]  # of the trainer that comes with Muster
SSH = ["--launcher", "ssh", "--hosts", "a,b,c", "--nodes", "2"]
REFUSED = [
    (["--", "train.py"], "a sweep needs --over NAME=VALUE,VALUE"),
    (["--over", "lr=1", "--", "train.py", "--lr", "2"], "train.py --lr 2 has --lr already"),
    (["--over", "a-b=1", "--", "train.py", "--a_b=2"], "has --a_b=2 already"),
    (["--over", "lr=1", "lr=2", "--", "train.py"], "lr is given twice; separate its values by com"),
    (
        ["--over", "lr=1", "2"],
        "--over 2: write NAME=VALUE,VALUE, with commas and no spaces between",
    ),
    (["--over", "lr=1", "--", "tain.py"], "tain.py: No such file or directory"),
    (["--over", "lr=1", "--sync", "single", "--", "train.py"], "--sync is a setting of the"),
    (
        ["--over", "lrr=1,2"],
        "with Muster has no such setting; did you mean lr?",
    ),
    (
        ["--over", "lr=1,x", "--nodes=0", "--task=synthetic"],
        "at least 1 (got 0)\nerror: synthetic-lr-x: --lr",
    ),
    (["--overr", "lr=1,2"], "unknown flag --overr; see --help\nerror: a sweep needs --over"),
    (["--over", "sync=dpd"], "sync-dpd: --sync: unknown 'dpd'"),
    (["--over", "lr=1", "--nodez", "2", "--", "train.py"], "unknown flag --nodez"),
    (["--over", "lr=1", "--run-id", "a", "--", "train.py"], "--name names the sweep"),
    (["--over", "lr=1", "--at-once", "0", "--", "train.py"], "--at-once must be at least 1"),
    (["--over", "lr=1", "--name", "a/b", "--", "train.py"], "--name 'a/b': use letters"),
    ([*TWO, "--master-port", "29511"], "--master-port 29511 is one port, but --at-once 2 runs"),
    ([*TWO, *SSH], "--at-once 2 of 2 nodes each needs 4 hosts, but there are 3 (a, b, c), enough"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_wrong_sweep_is_refused_before_its_first_run(project, words, message):
    found = refused(project, *([] if "ssh" in words else ["--launcher", "local"]), *words)
    assert message in found, found


def test_a_refusal_is_the_end_of_the_command(project):
    python = interpreter(for_workers=False)
    code, out, err = sweep(project, "--launcher", "local", "--", "train.py", python=python)
    assert (code, out) == (2, "") and err.startswith("error: a sweep needs --over NAME=")


@pytest.mark.parametrize("flag", ["--dry_run", "--dry-run"])
def test_dry_run_of_a_sweep_makes_nothing(project, flag):
    words = ["--launcher", "local", "--over", "lr=1,2", flag, "--", "train.py", "--x", "a b"]
    code, out, _ = sweep(project, *words, python=interpreter(for_workers=False))
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2 and not (project / "logs").exists()
    assert lines[1].endswith("-- train.py --x 'a b' --lr 2") and "--run-id=train-lr-2" in lines[1]


def test_a_value_stands_where_the_program_names_it(project):
    """As for a program whose arguments are no flags."""
    words = ["--launcher", "local", "--over", "lr=1,2", "--over", "seed=3", "--over", "rank=4"]
    program = ["train.py", "lr={lr}", "--lr", "a{lr}b", "${lr}", "{{lr}}", "{rank}", "{lrs}"]
    asked = [*words, "--dry-run", "--", *program]
    code, out, err = sweep(project, *asked, python=interpreter(for_workers=False))
    assert code == 0, err
    given = [shlex.split(line.partition(" -- ")[2]) for line in out.splitlines()]
    same = ["${lr}", "{{lr}}", "{rank}", "{lrs}", "--seed", "3", "--rank", "4"]
    assert given == [["train.py", f"lr={n}", "--lr", f"a{n}b", *same] for n in "12"]


@pytest.mark.slow
@pytest.mark.parametrize("words", EXAMPLES, ids=shlex.join)
def test_example_of_sweeps_page_runs_here(tmp_path, words):
    (tmp_path / "train.py").write_text(SHOWN_PROGRAM)
    (tmp_path / "hosts.txt").write_text("node0\nnode1\nnode2\nnode3\n")
    if "--launcher" in words:  # here as far as it goes without a cluster
        python = interpreter(for_workers=False)
        code, out, err = sweep(tmp_path, "--dry-run", *words, python=python)
        assert code == 0 and len(out.splitlines()) == 4, err
        return
    flags = LOCAL if "--" in words else LOCAL[:2]  # this program needs no torchrun
    code, out, err = sweep(tmp_path, *flags, "--logs-dir", "logs", *words)
    assert code == 0, out + err
    if "--" not in words:
        names = {f"synthetic-sync-{sync}_seed-{n}" for sync in ("ddp", "all_reduce") for n in "12"}
        assert set(cells(tmp_path)) == names
        assert all(one["results"] for one in cells(tmp_path).values())
    shown = fences(PAGE, "text")[0].splitlines()
    if words == EXAMPLES[0]:
        without_times = [
            [re.sub(r"\b\d+\.\d(?!\d)", "", line).split() for line in table[-7:-1]]
            for table in (out.splitlines(), shown)
        ]
        assert without_times[0] == without_times[1]


def test_the_files_of_a_sweep_are_those_that_the_documentation_names(project):
    code, _, err = sweep(project, *LOCAL, "--over", "lr=1", "--", "train.py", "--seed", "1")
    assert code == 0, err
    table = text_of(PAGE).partition("## Names and folders")[2].partition("\n## ")[0]
    cells_of_names = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {name.rstrip("/") for cell in cells_of_names for name in re.findall("`(.*?)`", cell)}
    found = {path.name for path in folder_of(project).iterdir() if path.name[0] != "."}
    assert found == named - {"submissions"}
