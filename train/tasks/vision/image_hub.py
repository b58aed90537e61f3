"""Image sets of the Hub are unpacked once into the cache, for all ranks and runs."""

from pathlib import Path
from typing import NamedTuple

import numpy
import torch

from train.tasks.sources import cache, hub
from train.tasks.vision.images import Images

SPLITS = ("train", "test")


class HubSet(NamedTuple):
    """A set of the Hub with the splits train and test, and a column `label`."""

    name: str
    column: str  # of the images
    mode: str  # Pillow's name of the pixels' form: "RGB", or "L" for grey

    def is_prepared(self, cache_dir: Path | None) -> bool:
        """Whether this process sees all of it in the cache."""
        return cache.is_whole(self._folder(cache_dir))

    def prepare(self, cache_dir: Path | None) -> None:
        """Unpack it into the cache, unless it is there.

        Raises:
            UsageError: the Hub cannot be reached, and the set has not been downloaded before.
        """
        if not self.is_prepared(cache_dir):
            sets = {split: self._unpacked(split) for split in SPLITS}
            cache.write(self._folder(cache_dir), sets)

    def read(self, cache_dir: Path | None) -> dict[str, Images]:
        """The images of each split, mapped into memory."""
        folder = self._folder(cache_dir)
        sets = {split: cache.read(folder, split) for split in SPLITS}
        return {split: Images(one["pixels"], one["labels"]) for split, one in sets.items()}

    def _folder(self, cache_dir: Path | None) -> Path:
        return cache.root(cache_dir) / f"images-{cache.fingerprint(self)}"

    def _unpacked(self, split: str) -> dict[str, torch.Tensor]:
        rows = hub.rows(self.name, split=split)
        images = [numpy.asarray(image.convert(self.mode)) for image in rows[self.column]]
        pixels = torch.from_numpy(numpy.stack(images))
        channels_first = pixels.movedim(-1, 1) if pixels.ndim == 4 else pixels.unsqueeze(1)
        return {
            "pixels": channels_first.contiguous(),
            "labels": torch.tensor(list(rows["label"])),
        }
