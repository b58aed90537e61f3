"""How workers keep together: what goes with what, and what is said where it does not."""

import pytest

from configs import plugins
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.configs.made import train_config

WAYS = plugins.names("train.sync.compression")


@pytest.mark.parametrize("mode", ["all_reduce", "ddp", "accelerate"])
@pytest.mark.parametrize("way", WAYS)
def test_modes_on_ddp_take_every_compressor(mode, way):
    assert TrainConfig(sync=mode, compress=way).compress == way


@pytest.mark.parametrize("mode", ["gather_scatter", "local_sgd", "zero1", "fsdp"])
def test_compress_in_another_mode_is_refused_with_the_mode_to_use(mode):
    wanted = f"--compress bf16 does not go with --sync {mode}; use --sync all_reduce"
    with pytest.raises(UsageError, match=wanted):
        TrainConfig(sync=mode, compress="bf16")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"compress": "fp16", "sync": "single"}, "--sync single sends nothing to compress"),
        ({"sync": "local_sgd", "precision": "fp16"}, "fp16 skips a step"),
        ({"sync": "zero1", "precision": "fp16"}, "--sync zero1 leaves each worker a part"),
        ({"sync": "fsdp", "precision": "fp16"}, "skips a step where any part overflows"),
        ({"sync": "fsdp", "compile": True}, "--compile does not go with --sync fsdp; use --sync z"),
        ({"sync": "all_reduce", "compress": "bf16", "bucket_mb": 0.0}, "leave out --bucket-mb 0"),
        ({"sync": "all_reduce", "compress": "bf16", "overlap": False}, "leave out --no-overlap"),
        (
            {"sync": "all_reduce", "compress": "powersgd", "precision": "fp16"},
            "use --precision bf16",
        ),
    ],
)
def test_sync_settings_that_exclude_each_other_are_refused(flags, message):
    with pytest.raises(UsageError, match=message):
        TrainConfig(**flags)


def test_a_value_that_a_release_had_is_refused_by_name():
    with pytest.raises(UsageError, match="got 'auto'; sizes are no longer searched for"):
        train_config("--sync", "all_reduce", "--bucket-mb", "auto")
    with pytest.raises(UsageError, match=r"'topk'; known: .*; topk was removed, .* use powersgd"):
        train_config("--sync", "all_reduce", "--compress", "topk")
    with pytest.raises(UsageError, match=r"'int8'; known: .*; int8 was removed; use bf16, or powe"):
        train_config("--sync", "all_reduce", "--compress", "int8")


def test_removed_setting_is_refused_by_name(tmp_path, read_again):
    replaced = "compress.share.*; it was topk's, which was removed; powersgd has compress_rank"
    with pytest.raises(UsageError, match=replaced):
        train_config("--compress-share", "0.1")
    path = tmp_path / "own.yaml"
    path.write_text("compress_share: 0.1\n")
    with pytest.raises(UsageError, match=replaced):
        train_config("--config", str(path))
    read_again()
    path.write_text(
        "compress_share: 0.01\npreflight: true\ntensorboard: false\nqos: null\nlr: 0.5\n"
    )
    assert train_config("--config", str(path)).lr == 0.5  # a run's config.yaml has all settings
