"""Send two thin factors of each matrix, of rank --compress-rank, and remember what they leave out.

T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD", NeurIPS 2019: one step of subspace
iteration on the mean of the matrices, starting from the last training step's result.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..ranks import flatten, unflatten
from .base import Compressor, Named, true_for


class PowerSgd(Compressor):
    """Vectors, and matrices not much larger than their factors, are sent uncompressed.

    A tensor of more dimensions becomes a matrix: its first dimension by all others. A bucket has
    two all_reduces of factors, (rows, rank) and (columns, rank), and one of uncompressed gradients.
    """

    def compress(self, gradients: Named) -> None:
        rank = self.options.compress_rank
        large = {
            name: gradient
            for name, gradient in gradients.items()
            if should_compress(gradient, rank)
        }
        plain = [gradient for name, gradient in gradients.items() if name not in large]
        if plain:
            self._mean(plain)
        if large:
            self._average_matrices(large)

    def _average_matrices(self, gradients: Named) -> None:
        matrices = [tensor.reshape(len(tensor), -1) for tensor in self.with_error(gradients)]
        rights = self._last_rights(list(gradients), matrices)
        # a matrix (rows, columns) is approximately left (rows, rank) @ right (columns, rank).T
        lefts = [matrix @ right for matrix, right in zip(matrices, rights, strict=True)]
        self._mean(lefts)
        lefts = [torch.linalg.qr(left).Q for left in lefts]
        rights = [matrix.T @ left for matrix, left in zip(matrices, lefts, strict=True)]
        self._mean(rights)
        approximations = [left @ right.T for left, right in zip(lefts, rights, strict=True)]
        self.keep_error(gradients, flatten(matrices) - flatten(approximations))
        of_each = zip(gradients.items(), approximations, rights, strict=True)
        for (name, gradient), approximation, right in of_each:
            gradient.copy_(approximation.view(gradient.shape))
            self.keep("right", name, right)

    def _last_rights(self, names: Sequence[str], matrices: Sequence[Tensor]) -> list[Tensor]:
        """Right factors (columns, rank), of the last step; random numbers at first."""
        rank = self.options.compress_rank
        # one that is all zeros would give zeros for ever
        lasts = [
            self.recall("right", name, matrix.new_empty(matrix.shape[1], rank))
            for name, matrix in zip(names, matrices, strict=True)
        ]
        is_usable = iter(true_for([last.any() for last in lasts if last is not None]))
        return [
            last if last is not None and next(is_usable) else _noise(name, matrix, rank)
            for name, matrix, last in zip(names, matrices, lasts, strict=True)
        ]

    def _mean(self, factors: Sequence[Tensor]) -> None:
        flat = flatten(factors) / self.ranks.world_size
        unflatten(self.thread.ranks.all_reduce(flat), factors)


def _noise(name: str, matrix: Tensor, rank: int) -> Tensor:
    """A first right factor of `matrix`, alike on all ranks."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(matrix.shape[1], rank, generator=generator).to(matrix)


def should_compress(gradient: Tensor, rank: int) -> bool:
    """Whether the two factors have at most half as many values as the gradient."""
    return (
        gradient.ndim > 1 and 2 * rank * (len(gradient) + gradient[0].numel()) <= gradient.numel()
    )


build = PowerSgd
