"""The project of a user whose program knows nothing of Muster."""

from pathlib import Path

import pytest


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A program, and a package of its own."""
    from tests.launch.programs.test_own_programs import DDP

    root = tmp_path / "project"
    (root / "configs").mkdir(parents=True)
    (root / "configs" / "__init__.py").touch()
    (root / "train.py").write_text(DDP)
    return root
