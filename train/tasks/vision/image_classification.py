"""Image classification: from files or the Hub to batches, a loss and an accuracy.

Images stay bytes until a batch is made from them; crops and flips are drawn per sample.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.data import TensorDataset, default_collate

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.evaluation.metrics import Confusion
from train.model.rng import hash_seed
from train.tasks.base import Batch, Datasets, Metric, Output, Samples, Task, in_float32
from train.tasks.sources import cache, hub

SPLITS = ("train", "test")
CROP_PADDING = 4  # pixels on each side


@dataclass(frozen=True, kw_only=True)
class Spec:
    """The differences between image sets."""

    # By their names for --model, the first by default: from images (n, channels, height, width) to
    # logits (n, classes).
    models: Mapping[str, Callable[[], nn.Module]]
    # Reads `SPLITS` from a folder: pixels uint8 (n, channels, height, width), labels int64 (n,)
    read: Callable[[Path], dict[str, TensorDataset]]
    hub: str  # the set's name on the Hub, where it has the same splits and a column `label`
    column: str  # of the images on the Hub
    mean: tuple[float, ...]  # of each channel, to shift bytes to numbers around zero
    std: tuple[float, ...]
    classes: int
    augment: bool = False


class Augmented(TensorDataset):
    """Images that get a black border, are cropped randomly to their size and perhaps mirrored.

    This depends only on seed, epoch and index: every rank gets the same image for a sample, in any
    order.
    """

    def __init__(self, images: TensorDataset, seed: int) -> None:
        super().__init__(*images.tensors)
        self.epoch = 0
        self._seed = seed

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        pixels, label = super().__getitem__(index)
        drawn = hash_seed(self._seed, self.epoch, index)
        drawn, top = divmod(drawn, 2 * CROP_PADDING + 1)
        drawn, left = divmod(drawn, 2 * CROP_PADDING + 1)
        _, height, width = pixels.shape
        bordered = pad(pixels, (CROP_PADDING,) * 4)
        crop = bordered[:, top : top + height, left : left + width]
        return crop.flip(-1) if drawn % 2 else crop, label


class ImageTask(Task):
    """One image set; trained on its part "train", evaluated on "test".

    Images from the Hub are unpacked into the cache once for all ranks and runs.
    """

    def __init__(self, spec: Spec, config: TrainConfig) -> None:
        self.spec, self.config = spec, config
        if config.model not in (None, *spec.models):
            known = ", ".join(spec.models)
            raise UsageError(f"--model: unknown {config.model!r}; expected one of {known}")
        self._augmented: Augmented | None = None

    def prepare(self) -> None:
        """Unpack the Hub's images into the cache; files in --data-dir are only checked.

        Raises:
            UsageError: files are missing or wrong, or the Hub cannot be reached.
        """
        if self.config.data_dir is not None:
            self.spec.read(self.config.data_dir)
        elif not self.is_prepared():
            cache.write(self._cache, {split: self._unpacked(split) for split in SPLITS})

    def is_prepared(self) -> bool:
        """Whether nothing is left to unpack; files are read directly, which is fast."""
        return self.config.data_dir is not None or cache.is_whole(self._cache)

    def build_datasets(self) -> Datasets:
        if self.config.data_dir is None:
            cached = cache.read(self._cache)
            sets = {split: TensorDataset(*tensors) for split, tensors in cached.items()}
        else:
            sets = self.spec.read(self.config.data_dir)
        train = sets["train"]
        if self.spec.augment:
            train = self._augmented = Augmented(train, self.config.seed)
        return Datasets(train, {"": sets["test"]})

    def start_epoch(self, epoch: int) -> None:
        if self._augmented is not None:
            self._augmented.epoch = epoch

    def build_model(self) -> nn.Module:
        return self.spec.models[self.config.model or next(iter(self.spec.models))]()

    def collate(self, samples: Sequence[Any]) -> Batch:
        """n images as float32 (n, channels, height, width), and labels (n,)."""
        pixels, labels = default_collate(list(samples))
        mean, std = (
            torch.tensor(numbers).view(-1, 1, 1) for numbers in (self.spec.mean, self.spec.std)
        )
        return {"images": (pixels.float() - mean) / std, "labels": labels}

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean cross entropy, and logits (n, classes)."""
        logits = in_float32(model(batch["images"]))
        return Output(cross_entropy(logits, batch["labels"]), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Confusion(self.spec.classes, ("accuracy",))

    @property
    def _cache(self) -> Path:
        return cache.path_for(self.config.cache_dir, "images", (self.spec.hub, self.spec.column))

    def _unpacked(self, split: str) -> tuple[Tensor, Tensor]:
        """Pixels uint8 (n, channels, height, width) and labels (n,) of the Hub's split."""
        rows = hub.rows(self.spec.hub, split=split).with_format("torch")[:]
        return rows[self.spec.column], rows["label"]
