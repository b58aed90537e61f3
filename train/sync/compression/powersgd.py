"""Send two thin factors of each matrix, of rank --compress-rank, and remember what they left out.

Vogels, Karimireddy and Jaggi, PowerSGD (2019): one step of subspace iteration on the mean of the
matrices, from where the last step of training left it.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from ..base import SyncOptions
from ..buckets.layout import flatten, spread
from ..ranks import Ranks
from .base import Compressor, all_reduced

FIRST = 2  # step, from 0, that DDP's PowerSGD may compress: torch wants the first two exact
STEP = "powersgd/step"


class PowerSgd(Compressor):
    """Vectors, and matrices that have about as few values as their factors, are sent as they are.

    A tensor of more dimensions is a matrix of its first dimension by all others. torch's DDP has a
    PowerSGD of its own, which is its hook here.
    """

    def __init__(self, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(ranks, options)
        self._ddp = PowerSGDState(
            None, matrix_approximation_rank=options.compress_rank, start_powerSGD_iter=FIRST
        )

    def average(self, key: int, gradients: Sequence[Tensor]) -> None:
        large = [one for one in gradients if is_worth_it(one, self.options.compress_rank)]
        plain = [one for one in gradients if not is_worth_it(one, self.options.compress_rank)]
        if plain:
            flat = flatten(plain)
            self.all_reduce(flat)
            spread(flat / self.ranks.world_size, plain)
        if large:
            self._average_matrices(key, large)

    def _average_matrices(self, key: int, gradients: Sequence[Tensor]) -> None:
        flat = self.with_error(key, flatten(gradients))
        sizes = [one.numel() for one in gradients]
        matrices = [
            part.view(len(one), -1) for part, one in zip(flat.split(sizes), gradients, strict=True)
        ]
        rights = self._last_rights(key, matrices)
        # a matrix (rows, columns) is nearly left (rows, rank) @ right (columns, rank).T
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
        rank = self.options.compress_rank
        sizes = [matrix.shape[1] * rank for matrix in matrices]
        generator = torch.Generator().manual_seed(key)  # the same on every rank
        noise = torch.randn(sum(sizes), generator=generator).to(matrices[0])
        last = self.recall(key, "rights", noise)
        return [part.view(-1, rank) for part in (noise if last is None else last).split(sizes)]

    def _mean(self, factors: Sequence[Tensor]) -> None:
        flat = flatten(factors)
        self.all_reduce(flat)
        spread(flat / self.ranks.world_size, factors)

    def hook(self, bucket: dist.GradBucket) -> Future[Tensor]:
        state, index, buffer = self._ddp, bucket.index(), bucket.buffer()
        error = state.error_dict.get(index)
        if error is not None and error.shape != buffer.shape:  # of a run with other buckets
            for memory in self._memories().values():
                memory.pop(index, None)
        compresses = state.iter >= state.start_powerSGD_iter
        before = state.total_numel_after_compression
        future = powerSGD_hook(state, bucket)
        # Its collectives follow each other in gloo's threads: those of the next bucket would come
        # between them, on each rank at another place.
        future.wait()
        sent = [buffer.numel()]
        if compresses:  # what goes as it is, then two factors
            factors = [state.p_memory_dict[index].numel(), state.q_memory_dict[index].numel()]
            sent = [state.total_numel_after_compression - before - sum(factors), *factors]
        for numel in sent:
            self.ranks.ledger.add(all_reduced(numel, buffer.dtype))
        return future

    def state(self) -> dict[str, Tensor]:
        if self._ddp.iter < FIRST:
            return super().state()
        of_ddp = {
            f"powersgd/{what}/{index}": tensor
            for what, memory in self._memories().items()
            for index, tensor in memory.items()
        }
        return {**super().state(), **of_ddp, STEP: torch.tensor([float(self._ddp.iter)])}

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        own = {name: one for name, one in state.items() if name.split("/")[1].isdigit()}
        super().restore(own, device)
        # where a rank's own part is missing, DDP's begins with nothing
        if "powersgd/error/0" not in state or STEP not in state:
            return
        self._ddp.iter = int(state[STEP].item())
        for what, memory in self._memories().items():
            prefix = f"powersgd/{what}/"
            memory.update(
                (int(name.removeprefix(prefix)), tensor.to(device, copy=True))
                for name, tensor in state.items()
                if name.startswith(prefix)
            )

    def _memories(self) -> dict[str, dict[int, Tensor]]:
        """What torch's PowerSGD remembers, each by the number of a bucket."""
        ddp = self._ddp
        return {"error": ddp.error_dict, "p": ddp.p_memory_dict, "q": ddp.q_memory_dict}


def is_worth_it(gradient: Tensor, rank: int) -> bool:
    """Whether two factors have at most half as many values as the gradient itself."""
    if gradient.ndim < 2 or not gradient.numel():
        return False
    rows, columns = len(gradient), gradient.numel() // len(gradient)
    return 2 * rank * (rows + columns) <= rows * columns


build = PowerSgd
