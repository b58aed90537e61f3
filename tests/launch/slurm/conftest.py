"""Slurm as tests of this folder meet it, without any of it installed."""

import pytest

from tests.launch.slurm.fakes import FakeSlurm


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Slurm's commands on the path; a job 12 is running."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    fake = FakeSlurm(folder)
    fake.job_is("RUNNING")
    monkeypatch.setenv("PATH", fake.env["PATH"])
    return fake
