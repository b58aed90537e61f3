"""Git's answers about a project, whatever its owner and the environment."""

import os
import subprocess
from pathlib import Path

import pytest

from muster import git
from muster.git import GitFailed, top_of
from muster.run_files import project_of
from tests.written import write

pytestmark = pytest.mark.needs("git")
ANOTHER = 12_345  # a user id
as_root = pytest.mark.needs("root")  # only root may give files away


def call(folder: Path, *words: str) -> None:
    user = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    subprocess.run(["git", *user, *words], cwd=folder, check=True, capture_output=True)


def of_another(folder: Path) -> Path:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ANOTHER, ANOTHER, follow_symlinks=False)
    return folder


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # no folder is trusted
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
    repository, tmp_path, monkeypatch
):
    of_another(repository)
    remedy = f"git config --global --add safe.directory {repository}"
    with pytest.raises(GitFailed, match=f"dubious ownership.*; if you trust its owner: {remedy}$"):
        listed(repository)
    (repository / "mine").mkdir()
    for folder in (repository / "src", repository / "mine"):
        assert project_of(folder) == repository
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    call(repository, *remedy.split()[1:])
    assert listed(repository) == {b"train.py", b"src/model.py", b".gitignore"}


@as_root
def test_a_repository_where_anybody_may_write_is_not_the_project(repository):
    """Any user may have created it around this user's folder, as in /tmp."""
    of_another(repository).chmod(0o1777)
    (repository / "mine").mkdir()
    assert project_of(repository / "mine") == repository / "mine"
    with pytest.raises(GitFailed, match=f"dubious ownership.*--add safe.directory {repository}$"):
        listed(repository / "mine")


def test_the_top_is_known_where_git_fails(repository, tmp_path, monkeypatch):
    (repository / ".git" / "index").write_bytes(b"x" * 100)
    (repository / ".git" / "HEAD").write_bytes(b"")
    with pytest.raises(GitFailed, match=r"/src: (.|\n)*repair the repo"):
        git.ask(repository / "src", "ls-files")
    assert project_of(repository / "src") == repository
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitFailed, match="git is not installed"):
        git.ask(repository, "ls-files")
    assert project_of(repository / "src") == repository


def test_a_folder_in_no_repository_is_a_project(tmp_path):
    (tmp_path / ".git").mkdir()  # an empty folder, as a container may mount it
    assert top_of(tmp_path) is None and project_of(tmp_path) == tmp_path


def test_a_user_s_settings_do_not_reach_it(repository, tmp_path, monkeypatch):
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
    assert project_of(repository / "src") == repository
    assert listed(repository) == {b"train.py", b"src/model.py", b".gitignore"}
    assert b"\n-1\n" in git.ask(repository, "diff", "HEAD")


def test_global_gitignore_is_kept(repository, tmp_path, monkeypatch):
    write(
        tmp_path, {"ignored": "*.key\n", "config": f"[core]\nexcludesFile = {tmp_path}/ignored\n"}
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    write(repository, {"a.key": "secret"})
    assert b"a.key" not in listed(repository)
