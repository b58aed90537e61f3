"""What other programs may load of train/ works under another name, beside modules like ours."""

import shutil
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.train.workers import finish, start

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("foreign_program.py")


def test_sync_package_loads_into_program_with_clashing_names(tmp_path):
    shutil.copy(PROGRAM, tmp_path / "program.py")
    (tmp_path / "train.py").write_text('MINE = "mine"\n')
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "__init__.py").write_text('MINE = "mine"\n')
    words = [str(tmp_path), str(CHECKOUT)]
    workers = [
        start(["program.py", str(rank), *words], None, tmp_path, sys.executable)
        for rank in range(2)
    ]
    for code, _, err in finish(workers):
        assert code == 0, err[-3000:]
