"""git's answers about a project, whoever owns it and whatever the environment says."""

import os
import subprocess
from pathlib import Path

import pytest

from muster import git
from muster.git import GitFailed, top_of
from muster.run_files import project_of
from tests.written import write

pytestmark = pytest.mark.needs("git")
ANOTHER = 12_345  # a user's number
as_root = pytest.mark.needs("root")  # which alone may give files away


def call(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


def of_another(folder: Path) -> Path:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # nothing is trusted there
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    files = {"train.py": "1", "src/model.py": "", ".gitignore": ".env\n"}
    root = write(tmp_path / "project", files)
    call(root, "init", "-q")
    call(root, "add", ".")
    call(root, "commit", "-qm", "all of it")
    return write(root, {".env": "TOKEN=1", "train.py": "2"})


def listed(folder: Path) -> set[bytes]:
    found = git.ask(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {*found.split(b"\0")} - {b""}


@as_root
def test_another_user_s_repository_is_refused_until_git_is_told_to_trust_it(
    project, tmp_path, monkeypatch
):
    of_another(project)
    remedy = f"git config --global --add safe.directory {project}"
    with pytest.raises(GitFailed, match=f"dubious ownership.*; if you trust its owner: {remedy}$"):
        listed(project)
    (project / "mine").mkdir()
    for folder in (project / "src", project / "mine"):
        assert project_of(folder) == project
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    call(project, *remedy.split()[1:])
    assert listed(project) == {b"train.py", b"src/model.py", b".gitignore"}


@as_root
def test_a_repository_where_anybody_may_write_is_not_the_project(project):
    """Any user may have made it around this one's folder, as in /tmp."""
    of_another(project).chmod(0o1777)
    (project / "mine").mkdir()
    assert project_of(project / "mine") == project / "mine"
    with pytest.raises(GitFailed, match=f"dubious ownership.*--add safe.directory {project}$"):
        listed(project / "mine")


def test_the_top_is_known_where_git_fails(project, tmp_path, monkeypatch):
    (project / ".git" / "index").write_bytes(b"x" * 100)
    (project / ".git" / "HEAD").write_bytes(b"")
    with pytest.raises(GitFailed, match=r"git does not answer about .*/src: .*; repair the repo"):
        git.ask(project / "src", "ls-files")
    assert project_of(project / "src") == project
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="there is no git here"):
        git.ask(project, "ls-files")
    assert project_of(project / "src") == project


def test_a_folder_in_no_repository_is_a_project(tmp_path):
    (tmp_path / ".git").mkdir()  # as a container may mount it
    assert top_of(tmp_path) is None and project_of(tmp_path) == tmp_path


def test_a_user_s_settings_do_not_reach_it(project, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    call(other, "init", "-q")
    for name, value in {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_EXTERNAL_DIFF": "false",
    }.items():
        monkeypatch.setenv(name, str(value))
    assert project_of(project / "src") == project
    assert listed(project) == {b"train.py", b"src/model.py", b".gitignore"}
    assert b"\n-1\n" in git.ask(project, "diff", "HEAD")


def test_global_gitignore_is_kept(project, tmp_path, monkeypatch):
    write(
        tmp_path, {"ignored": "*.key\n", "config": f"[core]\nexcludesFile = {tmp_path}/ignored\n"}
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    write(project, {"a.key": "secret"})
    assert b"a.key" not in listed(project)
