"""The courses' loop: after the backward pass, average one gradient after the other.

    loss.backward()
    for param in model.parameters():
        average(param.grad)          # all_reduce, or gather and scatter: modes/
    optimizer.step()

Nothing is sent while gradients are computed, and each waits for the one before: what the other ways
are measured against. With `--no-overlap --bucket-mb 4`, gradients go side by side, 4 MiB at a time.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from .base import DEFAULT_MB, GradSync
from .ranks import Ranks, dense_gradient, flatten, groups, spread


class AfterBackward(GradSync):
    """What `--no-overlap` means, and a collective for each parameter, `--bucket-mb 0`.

    A mode that does no more than this derives from it, and says how in `average`.
    """

    average: Callable[[Tensor, Ranks], None]  # makes a tensor the mean over ranks, in place

    def used(self, model: nn.Module) -> list[bool]:
        return [param.grad is not None for param in model.parameters() if param.requires_grad]

    @torch.no_grad()
    def sync(self, model: nn.Module, used: Sequence[bool] = ()) -> None:
        trained = {p: name for name, p in model.named_parameters() if p.requires_grad}
        # One that is missing on every rank stays so; one missing on some counts as zero there.
        gradients = [
            dense_gradient(param) for param, is_used in zip(trained, used, strict=True) if is_used
        ]
        names = {id(param.grad): name for param, name in trained.items()}
        for group in groups(gradients, self.options.bucket_bytes(DEFAULT_MB)):
            flat, before = flatten(group), len(self.ranks.ledger.step)
            self.average(flat, self.ranks)
            spread(flat, group)
            if len(group) == 1:
                self.ranks.ledger.of_parameter(before, names[id(group[0])], group[0])
