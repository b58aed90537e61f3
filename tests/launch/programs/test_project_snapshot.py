"""A snapshot is the project as it was: later changes of either do not affect the other."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.programs import project_snapshot
from muster.errors import UsageError
from tests.commands import call
from tests.required import AS_ANY_USER, need
from tests.written import write


def git(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    need("git")
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all of it")


@pytest.fixture
def repository(tmp_path) -> Path:
    files = {"train.py": "committed", "src/model.py": "model", "data/set.bin": "much"}
    root = write(tmp_path / "project", {**files, ".gitignore": "data/\nlogs/\n*.ckpt\n"})
    (root / "link.py").symlink_to("train.py")
    commit(root)
    later = {"train.py": "changed", "src/new.py": "untracked", "last.ckpt": "ignored"}
    return write(root, later)


def snapshot(repository: Path, *patterns: str, name: str = "run") -> Path:
    """Take a snapshot for a new run, and return its folder."""
    run_dir = repository / "logs" / name
    run_dir.mkdir(parents=True, exist_ok=True)
    project_snapshot.copy_project(repository, run_dir, patterns)
    return run_dir / "snapshot"


def test_snapshot_has_tracked_and_new_files_as_they_are(repository):
    root = snapshot(repository)
    assert (root / "train.py").read_text() == "changed"
    assert (root / "src" / "new.py").read_text() == "untracked"
    assert (root / "link.py").is_symlink() and (root / "link.py").read_text() == "changed"
    # ignored files are links to the originals
    assert (root / "data").readlink() == repository / "data"
    assert (root / "last.ckpt").readlink() == repository / "last.ckpt"
    assert not (root / "logs").exists() and not (root / ".git").exists()
    record = json.loads((root.parent / "snapshot.json").read_text())
    assert len(record["commit"]) == 40
    (repository / "train.py").write_text("edited while the job waits")
    assert (root / "train.py").read_text() == "changed"
    with (root / "src" / "model.py").open("a") as file:
        file.write(", and what a program adds")
    assert (repository / "src" / "model.py").read_text() == "model"
    assert (snapshot(repository, name="next") / "src" / "model.py").read_text() == "model"


def copied(root: Path) -> list[str]:
    return sorted(path.name for path in root.rglob("*") if path.is_file())


def test_submodules_and_clones_inside_are_part_of_it(repository, tmp_path):
    files = {"layer.py": "layer", "data/set.bin": "much", ".gitignore": "data/\n"}
    library = write(tmp_path / "library", files)
    commit(library)
    local = ("-c", "protocol.file.allow=always")
    git(repository, *local, "submodule", "add", "-q", str(library), "sub")
    git(repository / "sub", *local, "submodule", "add", "-q", str(library), "deeper")
    git(repository, "clone", "-q", str(library), "clone")
    for folder in ("sub", "sub/deeper", "clone"):
        write(repository / folder, {"new.py": "untracked", "data/set.bin": "much"})
    root = snapshot(repository)
    for folder in ("sub", "sub/deeper", "clone"):
        assert (root / folder / "layer.py").read_text() == "layer"
        assert (root / folder / "new.py").read_text() == "untracked"
        assert (root / folder / "data").readlink() == repository / folder / "data"
        assert not (root / folder / ".git").exists()


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_link_in_snapshot_leads_to_copy_or_else_original(tmp_path, has_git):
    repository, outside = tmp_path / "project", tmp_path / "datasets"
    write(tmp_path, {"project/src/model.py": "model", "datasets/set.bin": "much"})
    links = {"data": "../datasets", "again": "data/set.bin", "code": "src", "last": "logs/run",
             "src/whole": str(repository / "src" / "model.py"), "nowhere": "not/there"}  # fmt: skip
    for name, target in links.items():
        (repository / name).symlink_to(target)
    if has_git:
        git(repository, "init", "-q")
    root = snapshot(repository)
    assert (root / "data" / "set.bin").samefile(outside / "set.bin")
    assert (root / "again").samefile(outside / "set.bin")
    assert (root / "code" / "model.py").samefile(root / "src" / "model.py")
    assert (root / "src" / "whole").samefile(root / "src" / "model.py")
    assert (root / "last").samefile(repository / "logs" / "run")
    assert (root / "nowhere").is_symlink() and not (root / "nowhere").exists()


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_a_socket_and_a_fifo_are_no_part_of_it(tmp_path, monkeypatch, has_git):
    (tmp_path / "train.py").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("socket")
        if has_git:
            git(tmp_path, "init", "-q")
        root = snapshot(tmp_path)
    assert [path.name for path in root.iterdir()] == ["train.py"]


def test_the_changes_can_be_applied_again_to_the_commit(repository, tmp_path):
    write(repository, {"words.txt": b"caf\xe9 1\r\n", "weights.bin": bytes(range(256))})
    commit(repository)
    changed = {"words.txt": b"caf\xe9 2\r\n", "weights.bin": bytes(reversed(range(256)))}
    changed["train.py"] = b"its last line has no end"
    write(repository, changed)
    git(repository, "config", "diff.noprefix", "true")
    git(repository, "config", "color.ui", "always")
    root = snapshot(repository)
    git(tmp_path, "clone", "-q", str(repository), "copy")
    git(tmp_path / "copy", "apply", str(root.parent / "snapshot.diff"))
    assert {name: (tmp_path / "copy" / name).read_bytes() for name in changed} == changed


def test_file_that_vanishes_during_copy_is_not_in_snapshot(repository, monkeypatch):
    (repository / "src" / "zz.tmp").touch()
    copy = shutil.copy2

    def removing(source: Path, target: Path) -> None:
        (repository / "src" / "zz.tmp").unlink(missing_ok=True)
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", removing)
    root = snapshot(repository)
    assert (root / "src" / "model.py").exists() and not (root / "src" / "zz.tmp").exists()


def test_a_file_that_cannot_be_read_is_named(repository):
    (repository / "secret.key").touch(mode=0o000)
    take = "import sys; from pathlib import Path; from launch.programs import project_snapshot\n"
    take += "project_snapshot.copy_project(*map(Path, sys.argv[1:]))"
    done = call(*AS_ANY_USER, sys.executable, "-c", take, repository, repository / "logs" / "run")
    assert f"UsageError: {repository / 'secret.key'} cannot be read" in done.stderr


def test_ignored_files_asked_for_are_copied_and_others_linked(repository):
    (repository / "data" / "best.ckpt").write_text("ignored")
    root = snapshot(repository, "*.ckpt", "data/*.ckpt")
    for copied in (root / "last.ckpt", root / "data" / "best.ckpt"):
        assert not copied.is_symlink() and copied.read_text() == "ignored"
    assert (root / "data" / "set.bin").readlink() == repository / "data" / "set.bin"


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_untracked_file_is_copied_up_to_a_size(tmp_path, monkeypatch, has_git):
    monkeypatch.setattr(project_snapshot, "MOST_BYTES", 10)
    repository = write(tmp_path / "project", {"train.py": "x"})
    if has_git:
        git(write(repository, {"tracked.py": "x" * 100}), "init", "-q")
        git(repository, "add", "tracked.py")
    assert copied(snapshot(repository)) == ["tracked.py", "train.py"][not has_git :]
    (repository / "data.bin").write_text("x" * 100)
    with pytest.raises(UsageError, match=r"has more than 10 bytes.*data\.bin.*--no-snapshot"):
        snapshot(repository, name="second")


@settings(max_examples=20)
@given(
    st.lists(st.text("ab '\"$\n\r\u00e9\udce9", min_size=1, max_size=8), unique=True, max_size=5)
)
def test_file_of_any_name_is_copied(tmp_path_factory, names):
    files = {name: os.fsencode(name) for name in names}
    repository = write(tmp_path_factory.mktemp("project"), files)
    git(repository, "init", "-q")
    root = snapshot(repository)
    assert {path.name: path.read_bytes() for path in root.iterdir()} == files
    assert project_snapshot.new_files(root.parent) == []
    write(root, {"made \udce9/model.pt": ""})
    assert project_snapshot.new_files(root.parent) == [
        f"files that the program created in {root}: made \ufffd/model.pt"
    ]


def test_a_project_of_which_git_says_nothing_is_not_copied(repository, monkeypatch, tmp_path):
    """Otherwise the files that it ignores would be copied too: data, and files with secrets."""
    index = repository / ".git" / "index"
    whole = index.read_bytes()
    index.write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match=r"git .* index .*--no-snapshot"):
        snapshot(repository)
    with pytest.raises(UsageError, match="git "):  # nor sent to a login node
        project_snapshot.files_of(repository)
    index.write_bytes(whole)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"git is not installed(.|\n)*--no-snapshot"):
        snapshot(repository)


def test_a_clone_inside_of_which_git_says_nothing_is_not_copied(repository):
    git(repository, "init", "-q", "clone")
    write(repository / "clone", {"layer.py": "", ".gitignore": ".env", ".env": "TOKEN=1"})
    (repository / "clone" / ".git" / "index").write_bytes(b"x" * 100)
    with pytest.raises(UsageError, match=r"git .*/clone: "):
        snapshot(repository)


def test_a_project_that_git_ignores_whole_has_no_files(tmp_path):
    repository = write(tmp_path / "project", {".gitignore": "*", ".env": "TOKEN=1", "train.py": ""})
    git(repository, "init", "-q")
    assert copied(snapshot(repository)) == [".env", ".gitignore", "train.py"]
    assert all(path.is_symlink() for path in (repository / "logs/run/snapshot").iterdir())
    assert project_snapshot.files_of(repository) == []


def test_a_diff_that_git_cannot_make_is_said(repository):
    git(repository, "config", "filter.lfs.clean", "false")
    git(repository, "config", "filter.lfs.required", "true")
    write(repository, {".gitattributes": "*.py filter=lfs\n"})
    description = project_snapshot.copy_project(repository, repository / "logs" / "run")
    assert "; no snapshot.diff: git " in description and "lfs" in description
    empty = write(repository.parent / "new", {"a.py": ""})
    git(empty, "init", "-q")
    assert (
        project_snapshot.copy_project(empty, empty / "logs" / "run") == "snapshot: 1 files, 0 bytes"
    )


def test_snapshot_excludes_runs_of_project_even_in_a_sweep(tmp_path):
    sweep, other = "logs/sweeps/mine", "logs/other"
    names = (f"{sweep}/sweep.json", f"{sweep}/runs/a/summary.json", f"{other}/summary.json")
    repository = write(tmp_path / "sweeps" / "project", dict.fromkeys((*names, "train.py"), ""))
    for run in (f"{sweep}/runs/a", other):
        project_snapshot.copy_project(repository, repository / run)
        assert copied(repository / run / "snapshot") == ["train.py"]


def test_logs_dir_around_project_is_allowed_but_not_project_itself(repository):
    around = repository.parent / "run"
    assert project_snapshot.copy_project(repository, around).startswith("snapshot: 4 files, ")
    with pytest.raises(UsageError, match=r"--logs-dir .*/project is the project itself.*/logs, or"):
        project_snapshot.copy_project(repository, repository / "run")
