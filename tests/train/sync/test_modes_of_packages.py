"""`muster.sync` accepts another package's sync mode if that works as a DDP hook."""

import pytest
import torch

import muster
from tests.written import package
from train.sync import base, plugins
from train.sync.ranks import Ranks

MODES = "[muster.modes]\nring = train.sync.modes.all_reduce:build\n"
MODES += "loop = train.sync.after_backward:AfterBackward\n"


@pytest.fixture(autouse=True)
def rings(tmp_path, monkeypatch):
    package(tmp_path, "rings", MODES)
    monkeypatch.syspath_prepend(tmp_path)


def test_mode_of_a_package_needs_a_hook_in_muster_sync():
    model = torch.nn.Linear(2, 1)
    assert muster.sync(model, "ring").module is model
    with pytest.raises(muster.UsageError, match="mode 'loop' has no hook for DDP"):
        muster.sync(model, "loop")
    with pytest.raises(muster.UsageError, match=r"all_reduce, .*, loop, ring"):
        muster.sync(model, "rung")


def test_trainer_accepts_modes_of_packages_with_and_without_hook():
    assert {"loop", "ring", "zero1"} <= {*plugins.plugin_names("modes")}
    assert isinstance(plugins.build("loop", Ranks(0, 1), base.SyncOptions()), base.GradSync)
