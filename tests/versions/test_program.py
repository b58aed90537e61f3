"""What stands in for newer names of torch gives the same numbers."""

import json

import pytest

from tests.train.workers import run_on_ranks
from tests.versions import __main__ as versions
from tests.versions.instead import TAKEN_AWAY
from tests.versions.names import lacks

pytestmark = pytest.mark.slow


def test_without_the_newer_names_the_numbers_are_the_same(tmp_path, monkeypatch):
    gone = [name for name in TAKEN_AWAY if not lacks(name)]
    assert gone
    found = []
    for number, names in enumerate(([], gone)):
        monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path / f"run_{number}"))
        file = tmp_path / f"{number}.json"
        run_on_ranks(str(versions.PROGRAM), 2, str(file), *names)
        found.append(json.loads(file.read_text()))
    assert found[0] == found[1]
    for losses in found[0]["exact"].values():
        assert versions.apart(losses, found[0]["one process"]) < versions.CLOSE
    assert found[0]["half"][0] == found[0]["half"][1]
