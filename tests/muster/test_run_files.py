"""Each file of a run folder has one name, and one fate of each kind."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster import run_files
from muster.checkout import CHECKOUT
from muster.run_files import BELOW, FIELDS, FILES

WORD = st.text("az09-", min_size=1, max_size=8)
NUMBER = st.integers(0, 10**6)


def fields_of(file):
    return re.findall(r"{(\w+)}", file.pattern)


@st.composite
def named(draw, file):
    """Draw a path below the run folder that `file` stands for, and its fields."""
    fields = {name: draw(NUMBER if FIELDS[name] == r"\d+" else WORD) for name in fields_of(file)}
    path = file.path(Path("run"), **fields).relative_to("run").as_posix()
    return path + (f"/{draw(WORD)}" if file.pattern.endswith(BELOW) else ""), fields


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.pattern)
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_every_name_is_that_of_one_file_and_has_known_fates(file, data):
    name, fields = data.draw(named(file))
    assert [one.pattern for one in FILES if one.match(name) is not None] == [file.pattern]
    found = file.match(name)
    assert {key: int(word) if word.isdigit() else word for key, word in found.items()} == {
        key: int(one) if str(one).isdigit() else one for key, one in fields.items()
    }
    for unfinished in (f"{name}.4711.partial", f"{name}.partial"):
        assert run_files.is_unfinished(unfinished)
    assert run_files.matching(f"{name}.4711.partial") is file
    assert run_files.matching(f"{name}.reserved") is file  # from older versions
    assert run_files.matching(f"thesis/{name}") is None


def test_run_folder_entry_belongs_to_run_or_attempt_never_both():
    """Otherwise, it could not be put aside by renaming it."""
    for file in FILES:
        assert len({one.scope for one in FILES if one.top == file.top}) == 1, file.top


@pytest.mark.parametrize("file", FILES, ids=lambda one: one.pattern)
def test_the_page_on_run_folders_has_every_file(file):
    """It is listed by its folder or name; files that exist only while a run starts are exempt."""
    page = (CHECKOUT / "docs" / "run-folder.md").read_text(encoding="utf-8")
    if not Path(file.pattern).name.startswith("."):
        assert f"`{file.top}" in page, file.pattern


def test_run_files_are_found_by_number_without_partial_ones(tmp_path):
    for name in ("rank_00010.jsonl", "rank_00002.jsonl", "rank_00003.jsonl.77.partial", "other"):
        (tmp_path / "metrics").mkdir(exist_ok=True)
        (tmp_path / "metrics" / name).touch()
    found = run_files.METRICS.by_number(tmp_path)
    assert list(found) == [2, 10]
    assert list(found.values()) == run_files.METRICS.find(tmp_path)
    for number in (0, 2, 10):
        (tmp_path / "attempts" / str(number)).mkdir(parents=True)
    assert list(run_files.attempt_folders(tmp_path)) == [0, 2, 10]


@pytest.mark.needs("git")
def test_subfolder_belongs_to_git_project_with_non_utf8_name(tmp_path):
    project = tmp_path / os.fsdecode(b"caf\xe9\r\n")
    (project / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    assert run_files.project_of(project / "src") == project
    assert run_files.project_of(tmp_path) == tmp_path
