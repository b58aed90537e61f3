"""Of a large embedding only the rows that some rank has looked up carry gradient: only they move.

A batch of some thousand tokens looks up a small part of a vocabulary of 30,000 or more, and the
gradient of every other row is zero. So ranks first tell each other which rows they touched (a byte
for each, of which the largest counts); the union is the same on all ranks. Each rank then gathers
the rows of the union from its gradient, the collective averages these, and they are put back. All
other rows are zero on every rank, and so is their mean: nothing is approximated.

    gradient (rows, width)  --union-->  moved (used rows, width)  --mean-->  gradient (rows, width)

Which rows these are is read from the gradient itself, so that it is exact however the weight was
used.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..ranks import Ranks

LEAST_BYTES = 2**20  # of a weight: a smaller one is not worth a look at its rows
WORTH = 0.8  # of a weight's rows: with more of them it goes whole, without being gathered first


def candidates(model: nn.Module) -> list[nn.Parameter]:
    """Trained weights that only `nn.Embedding` modules hold, and that are worth it.

    One that also is an output layer (tied) has a gradient in every row. One that does not lie row
    after row in memory goes whole as well.
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


def rows_in_use(gradients: Sequence[Tensor], ranks: Ranks) -> "list[Rows]":
    """Of each gradient (rows, width) the rows that some rank has used; collective."""
    marks = ranks.all_reduce(torch.cat([touched(one) for one in gradients]), dist.ReduceOp.MAX)
    unions = marks.split([len(one) for one in gradients])
    return [Rows(one, union) for one, union in zip(gradients, unions, strict=True)]


def touched(gradient: Tensor) -> Tensor:
    """1 for each row that is not all zero: uint8 (rows,)."""
    if not gradient.numel():
        return torch.zeros(len(gradient), dtype=torch.uint8, device=gradient.device)
    # The bits of a number are zero where the number is; whole words are looked at fastest.
    words = torch.int64 if gradient[0].nbytes % torch.int64.itemsize == 0 else torch.uint8
    # A part of a bucket may begin in the middle of such a word; then by bytes.
    if gradient.storage_offset() * gradient.itemsize % torch.int64.itemsize:
        words = torch.uint8
    # Faster than `any`, which makes a bool of each number first.
    low, high = torch.aminmax(gradient.view(words), dim=1)
    return (low | high).ne(0).to(torch.uint8)


class Rows:
    """One weight's gradient (rows, width) on its way: `moved` is its rows `union`, or all."""

    def __init__(self, gradient: Tensor, union: Tensor) -> None:
        """`union`: uint8 (rows,), 1 where any rank has touched the row."""
        self._gradient = gradient
        self._rows = union.nonzero().flatten()
        is_whole = len(self._rows) > WORTH * len(union)
        self.moved = gradient if is_whole else gradient.index_select(0, self._rows)

    def give_back(self) -> None:
        """What has moved becomes the weight's gradient."""
        if self.moved is not self._gradient:
            self._gradient.index_copy_(0, self._rows, self.moved)
