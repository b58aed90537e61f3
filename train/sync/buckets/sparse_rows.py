"""Of a large embedding only the rows that some rank has looked up carry gradient: only they move.

A batch of some thousand tokens looks up a small part of a vocabulary of 30,000 or more, and the
gradient of every other row is zero. So ranks first tell each other which rows they touched (a byte
for each, in bucketed_sync's one exchange of flags); their union is the same on all ranks. Each rank
then gathers the rows of the union from its dense gradient, the collective averages these, and they
are put back. All other rows are zero on every rank, and so is their mean: nothing is approximated.

    gradient (rows, width)  --union-->  moved (used rows, width)  --mean-->  gradient (rows, width)

Which rows these are is read from the gradient itself, so that it is exact however the weight was
used: one that also is an output layer (tied) has a gradient in every row, and goes whole.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

LEAST_BYTES = 2**20  # of a weight: a smaller one is not worth a look at its rows
WORTH = 0.8  # of a weight's rows: with more of them it goes whole, without being gathered first
ROWS_AT_ONCE = 4096


def candidates(model: nn.Module) -> list[nn.Parameter]:
    """Trained weights that only `nn.Embedding` modules hold, and that are worth it.

    One that does not lie row after row in memory goes in a bucket.
    """
    held_by_others = {
        param
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for param in module.parameters(recurse=False)
    }
    return list(dict.fromkeys(_weights(model, held_by_others)))


def _weights(model: nn.Module, excluded: set[nn.Parameter]) -> Iterator[nn.Parameter]:
    for module in model.modules():
        if not isinstance(module, nn.Embedding):
            continue
        for weight in module.parameters(recurse=False):
            is_large = weight.nbytes >= LEAST_BYTES and weight.is_contiguous()
            if weight.requires_grad and is_large and weight not in excluded:
                yield weight


def touched(gradient: Tensor | None, rows: int, device: torch.device) -> Tensor:
    """1 for each row that is not all zero: uint8 (rows,)."""
    if gradient is None:
        return torch.zeros(rows, dtype=torch.uint8, device=device)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    bits = gradient.contiguous()
    # The bits of a number are zero where the number is; whole words are looked at fastest.
    words = torch.int64 if bits[0].nbytes % torch.int64.itemsize == 0 else torch.uint8
    # By parts: what `any` needs for itself would be an eighth of the gradient.
    parts = bits.view(words).split(ROWS_AT_ONCE)
    return torch.cat([part.any(dim=1) for part in parts]).to(torch.uint8)


class Rows:
    """One weight's gradient (rows, width) on its way: the rows `union`, or all of them."""

    def __init__(self, weight: nn.Parameter, union: Tensor) -> None:
        """`union`: uint8 (rows,), 1 where any rank has touched the row."""
        gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
        self._dense = (gradient.to_dense() if gradient.is_sparse else gradient).contiguous()
        self._rows = union.nonzero().flatten()
        self._weight = weight
        is_whole = len(self._rows) > WORTH * len(union)
        self.moved = self._dense if is_whole else self._dense.index_select(0, self._rows)

    def give_back(self) -> None:
        """What has moved becomes the weight's gradient."""
        if self.moved is not self._dense:
            self._dense.index_copy_(0, self._rows, self.moved)
        self._weight.grad = self._dense
