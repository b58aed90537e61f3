"""`make test` runs both halves of the tests, and fails where one of them has failed."""

import shutil
from pathlib import Path

import pytest

from tests.commands import call

REPOSITORY = Path(__file__).parents[1]
# In the order in which `make` looks at their ages.
FILES = "setup.cfg pyproject.toml constraints.txt .venv/pyvenv.cfg .venv/.torch-index"
PYTHON = """#!/bin/sh
case "$*" in
*--ignore=tests/cluster*) echo here >> halves; exit {here} ;;
*tests/cluster*) echo cluster >> halves; exit {cluster} ;;
esac
"""


@pytest.mark.parametrize(("here", "cluster"), [(0, 0), (1, 0), (0, 1), (1, 5)])
def test_both_halves_are_run_and_either_one_fails_it(tmp_path, here, cluster):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(here=here, cluster=cluster))
    python.chmod(0o755)
    for name in (*FILES.split(), ".venv/.installed-test"):
        (tmp_path / name).touch()
    done = call("make", "test", cwd=tmp_path)
    assert (tmp_path / "halves").read_text() == "here\ncluster\n", done.stderr
    assert (done.returncode == 0) is (here == cluster == 0), done.stderr
