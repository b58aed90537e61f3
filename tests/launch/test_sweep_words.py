"""The words of a sweep: dry runs, placeholders, and the documentation's examples."""

import re
import shlex
from pathlib import Path

import pytest

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
def swept(tmp_path) -> Path:
    return new_project(tmp_path)


@pytest.mark.parametrize("flag", ["--dry_run", "--dry-run"])
def test_dry_run_of_a_sweep_makes_nothing(swept, flag):
    words = ["--launcher", "local", "--over", "lr=1,2", flag, "--", "train.py", "--x", "a b"]
    code, out, _ = sweep(swept, *words, python=interpreter(for_workers=False))
    lines = out.splitlines()
    assert code == 0 and len(lines) == 2 and not (swept / "logs").exists()
    assert lines[1].endswith("-- train.py --x 'a b' --lr 2") and "--run-id=train-lr-2" in lines[1]


def test_a_value_stands_where_the_program_names_it(swept):
    """For example, for a program whose arguments are not flags."""
    words = ["--launcher", "local", "--over", "lr=1,2", "--over", "seed=3", "--over", "rank=4"]
    program = ["train.py", "lr={lr}", "--lr", "a{lr}b", "${lr}", "{{lr}}", "{rank}", "{lrs}"]
    asked = [*words, "--dry-run", "--", *program]
    code, out, err = sweep(swept, *asked, python=interpreter(for_workers=False))
    assert code == 0, err
    given = [shlex.split(line.partition(" -- ")[2]) for line in out.splitlines()]
    same = ["${lr}", "{{lr}}", "{rank}", "{lrs}", "--seed", "3", "--rank", "4"]
    assert given == [["train.py", f"lr={n}", "--lr", f"a{n}b", *same] for n in "12"]


@pytest.mark.slow
@pytest.mark.parametrize("words", EXAMPLES, ids=shlex.join)
def test_example_of_sweeps_page_runs_here(tmp_path, words):
    (tmp_path / "train.py").write_text(SHOWN_PROGRAM)
    (tmp_path / "hosts.txt").write_text("node0\nnode1\nnode2\nnode3\n")
    if "--launcher" in words:  # as far as possible without a cluster
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


def test_the_files_of_a_sweep_are_those_that_the_documentation_names(swept):
    code, _, err = sweep(swept, *LOCAL, "--over", "lr=1", "--", "train.py", "--seed", "1")
    assert code == 0, err
    table = text_of(PAGE).partition("## Names and folders")[2].partition("\n## ")[0]
    cells_of_names = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {name.rstrip("/") for cell in cells_of_names for name in re.findall("`(.*?)`", cell)}
    found = {path.name for path in folder_of(swept).iterdir() if path.name[0] != "."}
    assert found == named - {"submissions"}
