"""A snapshot is the project as it was: later edits change nothing, and nothing of the user's."""

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.programs import project_snapshot
from muster.errors import UsageError


def git(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "data").mkdir()
    (root / "train.py").write_text("committed")
    (root / "src" / "model.py").write_text("model")
    (root / "data" / "set.bin").write_text("much")
    (root / ".gitignore").write_text("data/\nlogs/\n*.ckpt\n")
    (root / "link.py").symlink_to("train.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    (root / "train.py").write_text("changed")
    (root / "src" / "new.py").write_text("untracked")
    (root / "last.ckpt").write_text("ignored")
    return root


def run_dir(project: Path, name: str) -> Path:
    folder = project / "logs" / name
    folder.mkdir(parents=True)
    return folder


def test_it_has_what_git_would_track_as_it_is_now(project):
    run = run_dir(project, "run")
    taken = project_snapshot.take(project, run)
    root = taken.root
    assert (root / "train.py").read_text() == "changed"
    assert (root / "src" / "new.py").read_text() == "untracked"
    assert (root / "link.py").is_symlink() and (root / "link.py").read_text() == "changed"
    # what git ignores is the original, in its place
    assert (root / "data").readlink() == project / "data"
    assert (root / "last.ckpt").readlink() == project / "last.ckpt"
    assert not (root / "logs").exists() and not (root / ".git").exists()
    record = json.loads((run / "snapshot.json").read_text())
    assert len(record["commit"]) == 40
    assert "+changed" in (run / "snapshot.diff").read_text()
    (project / "train.py").write_text("edited while the job waits")
    assert (root / "train.py").read_text() == "changed"


def test_unchanged_files_are_shared_between_snapshots_and_never_with_the_user(project):
    first = project_snapshot.take(project, run_dir(project, "first"))
    (project / "src" / "model.py").write_text("another model")
    second = project_snapshot.take(project, run_dir(project, "second"))
    assert second.shared_bytes > 0 and "shared" in str(second)
    assert (first.root / "train.py").samefile(second.root / "train.py")
    assert not (project / "train.py").samefile(second.root / "train.py")
    assert (second.root / "src" / "model.py").read_text() == "another model"
    assert (first.root / "src" / "model.py").read_text() == "model"


def test_what_a_program_has_changed_in_its_copy_is_not_handed_on(project):
    first = project_snapshot.take(project, run_dir(project, "first"))
    (first.root / "train.py").write_text("changed by the program itself")
    second = project_snapshot.take(project, run_dir(project, "second"))
    assert (second.root / "train.py").read_text() == "changed"


def test_files_that_were_made_there_are_named(project):
    run = run_dir(project, "run")
    root = project_snapshot.take(project, run).root
    assert project_snapshot.new_files(run) == []
    (root / "outputs").mkdir()
    (root / "outputs" / "model.pt").touch()
    assert project_snapshot.new_files(run) == [f"made in {root}: outputs/model.pt"]


def test_ignored_files_that_were_asked_for_are_copied(project):
    root = project_snapshot.take(project, run_dir(project, "run"), ["*.ckpt"]).root
    assert not (root / "last.ckpt").is_symlink()
    assert (root / "last.ckpt").read_text() == "ignored"


def test_a_folder_without_git_is_copied_up_to_a_size(tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.py").write_text("x")
    taken = project_snapshot.take(plain, run_dir(plain, "run"))
    assert taken.files == 1 and (taken.root / "train.py").read_text() == "x"
    monkeypatch.setattr(project_snapshot, "MOST_BYTES", 10)
    (plain / "data.bin").write_text("x" * 100)
    with pytest.raises(UsageError, match=r"has more than 10 bytes.*--no-snapshot"):
        project_snapshot.take(plain, run_dir(plain, "second"))


@settings(max_examples=20)
@given(st.lists(st.text("ab '\"$\n\u00e9", min_size=1, max_size=8), unique=True, max_size=5))
def test_any_name_of_a_file_is_one(tmp_path_factory, names):
    project = tmp_path_factory.mktemp("project")
    for name in names:
        (project / name).write_text(name)
    git(project, "init", "-q")
    run = run_dir(project, "run")
    root = project_snapshot.take(project, run).root
    assert {path.name: path.read_text() for path in root.iterdir()} == {one: one for one in names}


def test_the_runs_of_a_project_are_no_part_of_it_also_in_a_sweep(tmp_path):
    project = tmp_path / "sweeps" / "project"
    folder = project / "logs" / "sweeps" / "mine" / "runs" / "a"
    other = project / "logs" / "other"
    for one in (folder, other):
        one.mkdir(parents=True)
        (one / "summary.json").touch()
    (project / "train.py").touch()
    (folder.parents[1] / "sweep.json").touch()
    assert project_snapshot.take(project, folder).files == 1
    assert project_snapshot.take(project, other).files == 1
