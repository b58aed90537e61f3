"""Send two thin factors of each matrix, of rank --compress-rank, and remember what they left out.

Vogels, Karimireddy and Jaggi, PowerSGD (2019): one step of subspace iteration on the mean of the
matrices, from where the last step of training left it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from train.sync.buckets.layout import flatten, spread
from train.sync.compression.base import Compressor


class PowerSgd(Compressor):
    """Vectors, and matrices that have about as few values as their factors, are sent as they are.

    A tensor of more dimensions is a matrix of its first dimension by all others.
    """

    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        large = [one for one in gradients if is_worth_it(one, self.config.compress_rank)]
        plain = [one for one in gradients if not is_worth_it(one, self.config.compress_rank)]
        if plain:
            flat = flatten(plain)
            self.all_reduce(flat)
            spread(flat / self.world.world_size, plain)
        if large:
            self._average_matrices(key, large)

    def _average_matrices(self, key: int, gradients: Sequence[Tensor]) -> None:
        flat = self.with_error(key, flatten(gradients))
        sizes = [one.numel() for one in gradients]
        matrices = [
            part.view(len(one), -1) for part, one in zip(flat.split(sizes), gradients, strict=True)
        ]
        rights = self._last_rights(key, matrices)
        lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
        self._mean(lefts)
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        self._mean(rights)
        self.remember(key, "rights", flatten(rights))
        for matrix, left, right, one in zip(matrices, lefts, rights, gradients, strict=True):
            near = left @ right.T
            matrix -= near
            one.copy_(near.view(one.shape))
        self.remember(key, "error", flat)

    def _last_rights(self, key: int, matrices: Sequence[Tensor]) -> list[Tensor]:
        """The right factor (columns, rank) of each matrix after the last step; at first, noise."""
        rank = self.config.compress_rank
        sizes = [matrix.shape[1] * rank for matrix in matrices]
        generator = torch.Generator().manual_seed(key)  # the same on every rank
        noise = torch.randn(sum(sizes), generator=generator).to(matrices[0])
        last = self.recall(key, "rights", noise)
        return [part.view(-1, rank) for part in (noise if last is None else last).split(sizes)]

    def _mean(self, factors: Sequence[Tensor]) -> None:
        flat = flatten(factors)
        self.all_reduce(flat)
        spread(flat / self.world.world_size, factors)


def is_worth_it(gradient: Tensor, rank: int) -> bool:
    """Whether two factors have at most half as many values as the gradient itself."""
    if gradient.ndim < 2 or not gradient.numel():
        return False
    rows, columns = len(gradient), gradient.numel() // len(gradient)
    return 2 * rank * (rows + columns) <= rows * columns


build = PowerSgd
