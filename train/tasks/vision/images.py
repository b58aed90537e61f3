"""Images stay bytes until they are in a batch; crops and flips are drawn per sample."""

from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import TensorDataset

from train.model.rng import hash_seed

CROP_PADDING = 4  # pixels on each side


class Augmented(TensorDataset):
    """Each image is cropped randomly from itself with a black border, and perhaps mirrored.

    This depends on seed, epoch and index only: every rank gets the same image for a sample, in any
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
