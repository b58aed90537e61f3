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
