"""How workers keep together: what goes with what, and what is said where it does not."""

import pytest

from configs import plugins
from configs.settings.train import TrainConfig
from muster.errors import UsageError

WAYS = plugins.names("train.sync.compression")


@pytest.mark.parametrize("way", WAYS)
def test_all_reduce_compresses_in_every_way(way):
    assert TrainConfig(sync="all_reduce", compress=way).compress == way


@pytest.mark.parametrize("mode", ["ddp", "accelerate"])
@pytest.mark.parametrize("way", WAYS)
def test_ddp_compresses_as_its_hooks_do(mode, way):
    if way in ("fp16", "bf16", "powersgd"):
        assert TrainConfig(sync=mode, compress=way).compress == way
        return
    wanted = (
        rf"--compress {way} does not go with --sync {mode} "
        r"\(it can: fp16, bf16, powersgd\); use --sync all_reduce"
    )
    with pytest.raises(UsageError, match=wanted):
        TrainConfig(sync=mode, compress=way)


@pytest.mark.parametrize("mode", ["gather_scatter", "local_sgd", "zero1", "fsdp"])
def test_other_modes_name_the_one_that_can(mode):
    wanted = f"--compress bf16 does not go with --sync {mode}; use --sync all_reduce"
    with pytest.raises(UsageError, match=wanted):
        TrainConfig(sync=mode, compress="bf16")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"compress": "zip"}, "--compress: unknown 'zip'; known: none, bf16, fp16, int8, "),
        ({"compress": "fp16", "sync": "single"}, "--sync single sends nothing to compress"),
        ({"compress_rank": 0}, "--compress-rank must be at least 1"),
        ({"compress_share": 0.0}, "--compress-share must be a finite number above 0"),
        ({"compress_share": 1.5}, "--compress-share must be at most 1"),
        ({"sync_every": 0}, "--sync-every must be at least 1"),
        ({"outer_lr": 0.0}, "--outer-lr must be a finite number above 0"),
        ({"outer_momentum": 1.0}, "--outer-momentum must be at least 0 and below 1"),
        ({"sync": "local_sgd", "precision": "fp16"}, "fp16 skips a step"),
        ({"sync": "zero1", "precision": "fp16"}, "--sync zero1 leaves each worker a part"),
        ({"sync": "fsdp", "precision": "fp16"}, "skips a step where any part overflows"),
        ({"sync": "fsdp", "compile": True}, "--compile does not go with --sync fsdp; use --sync z"),
        ({"sync": "all_reduce", "levels": 3}, r"--levels must be 1, 2 or auto \(got 3\)"),
        ({"sync": "ddp", "levels": 2}, "--levels 2 does not go with --sync ddp; use --sync all_r"),
        ({"sync": "all_reduce", "levels": 2, "compress": "bf16"}, "bf16 sends to all workers in"),
        ({"sync": "ddp", "local_group": "node"}, "does not go with --sync ddp; use --sync local_"),
        ({"sync": "all_reduce", "compress": "topk", "precision": "fp16"}, "use --precision bf16"),
    ],
)
def test_what_does_not_go_is_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**flags)
