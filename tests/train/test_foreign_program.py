"""train/'s modules for other programs work under another name, beside modules like ours."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import vermin

from muster.checkout import CHECKOUT
from tests.train.workers import finish, start

PROGRAM = Path(__file__).with_name("foreign_program.py")
FOLDERS = "sync batches checkpoints records distributed evaluation model program".split()
LIBRARY = [
    file
    for folder in ("muster", *(f"train/{name}" for name in FOLDERS))
    for file in sorted((CHECKOUT / folder).rglob("*.py"))
]


@pytest.mark.slow
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


def test_library_names_no_package_of_a_users_program():
    """Not even in a function; lint-imports cannot tell a relative import from an absolute one."""
    taken = re.compile(r"^ *(?:from|import) (?:configs|launch|tests|train)\b", re.MULTILINE)
    files = [file for file in LIBRARY if CHECKOUT / "train" in file.parents]
    assert [file for file in files if taken.search(file.read_text(encoding="utf-8"))] == []


def test_library_runs_on_python_3_10():
    """The toolkit's commands need 3.11."""
    config = vermin.Config()
    config.set_eval_annotations(True)
    newer = {}
    for file in LIBRARY:
        visitor = vermin.visit(file.read_text(encoding="utf-8"), config)
        if visitor.minimum_versions()[1] > (3, 10):
            newer[file] = visitor.output_text()
    assert newer == {}
