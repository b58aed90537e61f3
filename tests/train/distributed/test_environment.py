"""What a run records of its host."""

import subprocess

import pytest
import torch

from train.distributed import environment


@pytest.mark.needs("git")
def test_installation_inside_a_users_repository_records_no_commit(tmp_path, monkeypatch):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), (*identity, "commit", "-q", "--allow-empty", "-m", "theirs")):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    installed = tmp_path / "env" / "lib" / "muster" / "_checkout"
    installed.mkdir(parents=True)
    monkeypatch.setattr(environment, "CHECKOUT", installed)
    assert environment.describe("a", torch.device("cpu"))["commit"] is None
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    assert len(environment.describe("a", torch.device("cpu"))["commit"]) == 40


@pytest.mark.needs("git")
@pytest.mark.parametrize(("changed", "dirty"), [("docs/speed.md", False), ("train/loop.py", True)])
def test_recorded_commit_is_dirty_by_code_but_not_docs(tmp_path, monkeypatch, changed, dirty):
    def git(*words):
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)

    for name in ("docs/speed.md", "train/loop.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "theirs")
    monkeypatch.setattr(environment, "CHECKOUT", tmp_path)
    assert environment.describe("a", torch.device("cpu"))["dirty"] is False
    (tmp_path / changed).write_text("after")
    assert environment.describe("a", torch.device("cpu"))["dirty"] is dirty
