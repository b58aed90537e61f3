"""A snapshot is the project as it was: later edits change nothing, and nothing of the user's."""

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

# Root reads all files, unless it gives up the right to.
AS_ANY_USER = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
AS_ANY_USER = AS_ANY_USER if os.geteuid() == 0 else []


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


def test_each_run_has_files_of_its_own(project):
    first = project_snapshot.take(project, run_dir(project, "first"))
    second = project_snapshot.take(project, run_dir(project, "second"))
    with (second.root / "src" / "model.py").open("a") as file:
        file.write(", and what a program adds")
    assert (first.root / "src" / "model.py").read_text() == "model"
    assert (project / "src" / "model.py").read_text() == "model"
    third = project_snapshot.take(project, run_dir(project, "third"))
    assert (third.root / "src" / "model.py").read_text() == "model"


def test_submodules_and_clones_inside_are_part_of_it(project, tmp_path):
    library = tmp_path / "library"
    (library / "data").mkdir(parents=True)
    (library / "layer.py").write_text("layer")
    (library / "data" / "set.bin").write_text("much")
    (library / ".gitignore").write_text("data/\n")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "first")
    local = ("-c", "protocol.file.allow=always")
    git(project, *local, "submodule", "add", "-q", str(library), "sub")
    git(project / "sub", *local, "submodule", "add", "-q", str(library), "deeper")
    git(project, "clone", "-q", str(library), "clone")
    for folder in ("sub", "sub/deeper", "clone"):
        (project / folder / "new.py").write_text("untracked")
        (project / folder / "data").mkdir()
        (project / folder / "data" / "set.bin").write_text("much")
    root = project_snapshot.take(project, run_dir(project, "run")).root
    for folder in ("sub", "sub/deeper", "clone"):
        assert (root / folder / "layer.py").read_text() == "layer"
        assert (root / folder / "new.py").read_text() == "untracked"
        assert (root / folder / "data").readlink() == project / folder / "data"
        assert not (root / folder / ".git").exists()


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_a_link_leads_to_the_same_thing_in_the_copy_or_else_to_the_original(tmp_path, has_git):
    project, outside = tmp_path / "project", tmp_path / "datasets"
    for folder in (project / "src", project / "logs" / "run", outside):
        folder.mkdir(parents=True)
    (project / "src" / "model.py").write_text("model")
    (outside / "set.bin").write_text("much")
    links = {"data": "../datasets", "again": "data/set.bin", "code": "src", "last": "logs/run",
             "src/whole": str(project / "src" / "model.py"), "nowhere": "not/there"}  # fmt: skip
    for name, target in links.items():
        (project / name).symlink_to(target)
    if has_git:
        git(project, "init", "-q")
    root = project_snapshot.take(project, project / "logs" / "run").root
    assert (root / "data" / "set.bin").samefile(outside / "set.bin")
    assert (root / "again").samefile(outside / "set.bin")
    assert (root / "code" / "model.py").samefile(root / "src" / "model.py")
    assert (root / "src" / "whole").samefile(root / "src" / "model.py")
    assert (root / "last").samefile(project / "logs" / "run")
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
        root = project_snapshot.take(tmp_path, run_dir(tmp_path, "run")).root
    assert [path.name for path in root.iterdir()] == ["train.py"]


def test_the_changes_can_be_applied_again_to_the_commit(project, tmp_path):
    (project / "words.txt").write_bytes("caf\u00e9 1\r\n".encode("latin-1"))
    (project / "weights.bin").write_bytes(bytes(range(256)))
    git(project, "add", ".")
    git(project, "commit", "-qm", "second")
    (project / "words.txt").write_bytes("caf\u00e9 2\r\n".encode("latin-1"))
    (project / "weights.bin").write_bytes(bytes(reversed(range(256))))
    (project / "train.py").write_text("its last line has no end")
    git(project, "config", "diff.noprefix", "true")
    git(project, "config", "color.ui", "always")
    run = run_dir(project, "run")
    project_snapshot.take(project, run)
    git(tmp_path, "clone", "-q", str(project), "copy")
    git(tmp_path / "copy", "apply", str(run / "snapshot.diff"))
    for name in ("words.txt", "weights.bin", "train.py"):
        assert (tmp_path / "copy" / name).read_bytes() == (project / name).read_bytes()


def test_a_file_that_vanishes_while_others_are_copied_is_no_part_of_it(project, monkeypatch):
    (project / "src" / "zz.tmp").touch()
    copy = shutil.copy2

    def removing(source: Path, target: Path) -> None:
        (project / "src" / "zz.tmp").unlink(missing_ok=True)
        copy(source, target)

    monkeypatch.setattr(shutil, "copy2", removing)
    root = project_snapshot.take(project, run_dir(project, "run")).root
    assert (root / "src" / "model.py").exists() and not (root / "src" / "zz.tmp").exists()


def test_a_file_that_cannot_be_read_is_named(project):
    run = run_dir(project, "run")
    (project / "secret.key").touch(mode=0o000)
    take = "import sys; from pathlib import Path; from launch.programs import project_snapshot\n"
    take += "project_snapshot.take(*map(Path, sys.argv[1:]))"
    command = [*AS_ANY_USER, sys.executable, "-c", take, str(project), str(run)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"UsageError: {project / 'secret.key'} cannot be read" in done.stderr


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


def test_what_lies_beside_an_ignored_file_that_was_copied_is_linked(project):
    (project / "data" / "best.ckpt").write_text("ignored")
    root = project_snapshot.take(project, run_dir(project, "run"), ["data/*.ckpt"]).root
    assert not (root / "data" / "best.ckpt").is_symlink()
    assert (root / "data" / "set.bin").readlink() == project / "data" / "set.bin"


@pytest.mark.parametrize("has_git", [True, False], ids=["git", "no git"])
def test_what_git_does_not_track_is_copied_up_to_a_size(tmp_path, monkeypatch, has_git):
    monkeypatch.setattr(project_snapshot, "MOST_BYTES", 10)
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("x")
    if has_git:
        git(project, "init", "-q")
        (project / "tracked.py").write_text("x" * 100)
        git(project, "add", "tracked.py")
    taken = project_snapshot.take(project, run_dir(project, "run"))
    assert taken.files == 1 + has_git and (taken.root / "train.py").read_text() == "x"
    (project / "data.bin").write_text("x" * 100)
    with pytest.raises(UsageError, match=r"has more than 10 bytes.*data\.bin.*--no-snapshot"):
        project_snapshot.take(project, run_dir(project, "second"))


@settings(max_examples=20)
@given(
    st.lists(st.text("ab '\"$\n\r\u00e9\udce9", min_size=1, max_size=8), unique=True, max_size=5)
)
def test_any_name_of_a_file_is_one(tmp_path_factory, names):
    project = tmp_path_factory.mktemp("project")
    for name in names:
        (project / name).write_bytes(os.fsencode(name))
    git(project, "init", "-q")
    run = run_dir(project, "run")
    root = project_snapshot.take(project, run).root
    copied = {path.name: os.fsdecode(path.read_bytes()) for path in root.iterdir()}
    assert copied == {one: one for one in names}
    (root / "made \udce9").touch()
    (line,) = project_snapshot.new_files(run)
    assert line.encode().endswith("made \ufffd".encode())


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


def test_runs_may_be_kept_around_the_project_but_not_in_its_own_folder(project):
    around = project.parent / "run"
    assert project_snapshot.take(project, around).files == 4
    with pytest.raises(UsageError, match=r"--logs-dir .*/project is the project itself.*/logs, or"):
        project_snapshot.take(project, project / "run")
