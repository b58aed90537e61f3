"""The courses' loop: after the backward pass, average the gradients one after the other.

    loss.backward()
    for param in model.parameters():
        average(param.grad)          # all_reduce, or gather and scatter: modes/
    optimizer.step()

Nothing is sent while gradients are computed, and each collective waits for the one before it. The
other modes are measured against this loop. With `--no-overlap --bucket-mb 4`, gradients are joined
and sent 4 MiB at a time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .base import DEFAULT_MB, GradSync
from .ranks import Ranks, dense_gradient, flatten, groups, unflatten, waits


class AfterBackward(GradSync):
    """The loop for `--no-overlap` and for `--bucket-mb 0` (one collective per parameter).

    A mode that does no more than this derives from this class and defines `average`.
    """

    average: Callable[[Tensor, Ranks], None]  # averages a tensor over the ranks, in place

    def used(self, model: nn.Module) -> list[bool]:
        return [param.grad is not None for param in model.parameters() if param.requires_grad]

    @torch.no_grad()
    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        trained = {p: name for name, p in model.named_parameters() if p.requires_grad}
        # A gradient missing on every rank stays missing. One missing on some ranks counts as zero
        # there.
        gradients = [
            dense_gradient(param) for param, is_used in zip(trained, used, strict=True) if is_used
        ]
        names = {id(param.grad): name for param, name in trained.items()}
        for group in groups(gradients, self.options.bucket_bytes(DEFAULT_MB)):
            flat, before = flatten(group), len(self.ranks.ledger.step)
            waits.during(self.average, flat, self.ranks)
            unflatten(flat, group)
            if len(group) == 1:
                self.ranks.ledger.name_parameter(before, names[id(group[0])], group[0])
