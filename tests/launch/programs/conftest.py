"""A user's project whose program does not use Muster."""

from pathlib import Path

import pytest

from tests.launch.scripts import DDP
from tests.written import write


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A program, and a package of its own."""
    return write(tmp_path / "project", {"configs/__init__.py": "", "train.py": DDP})
