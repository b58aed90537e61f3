"""Settings for synchronization: valid combinations, and the errors for others."""

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


def test_removed_setting_is_refused_by_name(tmp_path, read_again):
    replaced = "compress.share.*powersgd"
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
