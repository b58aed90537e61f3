"""What frameworks.py needs from Accelerate and Lightning, and what it adds to their DDP."""

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster
from train.sync.ddp.data_parallel import hook_of

BUCKET_MB = 0.5


@pytest.fixture
def strategy(alone):
    """Return a maker of Lightning strategies on a CPU, with a model not yet wrapped in DDP."""
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch import accelerators, strategies
    from lightning.pytorch.plugins.environments import LightningEnvironment

    def make_strategy(**options) -> strategies.DDPStrategy:
        made = strategies.DDPStrategy(
            accelerator=accelerators.CPUAccelerator(),
            parallel_devices=[torch.device("cpu")],
            cluster_environment=LightningEnvironment(),
            **options,
        )
        model = lightning.LightningModule()
        model.layer = nn.Linear(2, 1)
        made.connect(model)
        return made

    return make_strategy


def test_lightning_strategy_makes_ddp_with_our_buckets_and_hook(strategy):
    changed = strategy(static_graph=True)
    assert muster.sync_ddp(changed, bucket_mb=BUCKET_MB, compress="bf16") is changed
    changed.configure_ddp()
    model = changed.model
    assert isinstance(model, DistributedDataParallel)
    assert model.bucket_bytes_cap == BUCKET_MB * 2**20
    assert model.gradient_as_bucket_view
    assert model.static_graph
    assert hook_of(model).options.compress == "bf16"


def test_fabric_strategy_makes_ddp_with_our_buckets_and_hook(alone):
    strategies = pytest.importorskip("lightning.fabric.strategies")
    from lightning.fabric.plugins.environments import LightningEnvironment

    changed = strategies.DDPStrategy(
        parallel_devices=[torch.device("cpu")],
        cluster_environment=LightningEnvironment(),
        static_graph=True,
    )
    assert muster.sync_ddp(changed, bucket_mb=BUCKET_MB, compress="bf16") is changed
    for model in (changed.setup_module(nn.Linear(2, 1)) for _ in range(2)):
        assert isinstance(model, DistributedDataParallel)
        assert model.bucket_bytes_cap == BUCKET_MB * 2**20
        assert model.gradient_as_bucket_view
        assert model.static_graph
        assert hook_of(model).options.compress == "bf16"


def test_lightning_strategy_with_a_hook_of_its_own_is_refused(strategy):
    with pytest.raises(muster.UsageError, match="the strategy has a ddp_comm_hook"):
        muster.sync_ddp(strategy(ddp_comm_hook=print))


def test_lightning_strategy_that_makes_no_ddp_is_refused():
    strategies = pytest.importorskip("lightning.pytorch.strategies")
    with pytest.raises(muster.UsageError, match="SingleDeviceStrategy"):
        muster.sync_ddp(strategies.SingleDeviceStrategy("cpu"))


def test_accelerator_that_has_prepared_a_model_is_refused(alone):
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 1))
    with pytest.raises(muster.UsageError, match="prepare"):
        muster.sync_ddp(accelerator)
