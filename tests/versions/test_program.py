"""The substitutes for newer names of torch give the same numbers."""

import json

import pytest
import torch

from tests.train.workers import run_on_ranks
from tests.versions import __main__ as versions

pytestmark = pytest.mark.slow

# Names that only newer versions of torch.distributed have.
NEWER = ("all_gather_single", "reduce_scatter_single", "set_timeout")


def test_without_the_newer_names_the_numbers_are_the_same(tmp_path, monkeypatch):
    here = [name for name in NEWER if hasattr(torch.distributed, name)]
    gone = [f"torch.distributed.{name}" for name in here]
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
