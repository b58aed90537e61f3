"""Images stay bytes until they are in a batch; crops and flips are drawn per sample."""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import pad

from train.model.rng import hash_seed

CROP_PADDING = 4  # pixels on each side


class Image(NamedTuple):
    pixels: Tensor  # uint8 (channels, height, width)
    label: int


class Images:
    """One set of images of one size."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        """Pixels uint8 (n, channels, height, width), labels int64 (n,)."""
        self.pixels, self.labels = pixels, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Image:
        return Image(self.pixels[index], int(self.labels[index]))


class Augmented(Images):
    """Each image is cropped randomly from itself with a black border, and perhaps mirrored.

    This depends on seed, epoch and index only: every rank gets the same image for a sample, in any
    order.
    """

    def __init__(self, images: Images, seed: int) -> None:
        super().__init__(images.pixels, images.labels)
        self.epoch = 0
        self._seed = seed

    def __getitem__(self, index: int) -> Image:
        image = super().__getitem__(index)
        drawn = hash_seed(self._seed, self.epoch, index)
        drawn, top = divmod(drawn, 2 * CROP_PADDING + 1)
        drawn, left = divmod(drawn, 2 * CROP_PADDING + 1)
        _, height, width = image.pixels.shape
        bordered = pad(image.pixels, (CROP_PADDING,) * 4)
        crop = bordered[:, top : top + height, left : left + width]
        return image._replace(pixels=crop.flip(-1) if drawn % 2 else crop)
