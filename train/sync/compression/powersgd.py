"""Send two thin factors of each matrix, of rank --compress-rank: torch's PowerSGD hook.

T. Vogels, S. P. Karimireddy and M. Jaggi, "PowerSGD", NeurIPS 2019. What the factors leave out is
added to the next step's gradient. torch stores that by bucket number, and DDP rebuilds its buckets
after the first pass, so the first two steps send everything.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.futures import Future

from muster.errors import UsageError, refuse

from ..base import DEFAULT_MB, SyncOptions
from ..ddp.hooks import BucketHook
from ..ranks import Ranks, waits

STATE_KEYS = (
    "error_dict",
    "p_memory_dict",
    "q_memory_dict",
)  # torch's tensors by bucket number
RANDOM = "MT19937"  # numpy's name for the generator that torch uses
TINY = 1e-8  # added to the length of a column, so that a matrix of zeros does not become NaN


class PowerSgd(BucketHook):
    """Each bucket takes three all_reduces: of all not worth compressing, and of both factors."""

    default_mb = DEFAULT_MB

    def __init__(self, model: nn.Module, ranks: Ranks, options: SyncOptions) -> None:
        super().__init__(model, ranks, options)
        refuse(_problems(model), where="--compress powersgd: ")
        # the factors do not fit another --compress-rank
        self._prefix = f"powersgd/{options.compress_rank}/"
        self._last: Future[Tensor] | None = None
        self._begin()

    def _begin(self) -> None:
        """Start to compress as in the first step."""
        rank = self.options.compress_rank
        self._state = PowerSGDState(
            None, rank, start_powerSGD_iter=2, orthogonalization_epsilon=TINY
        )

    @cached_property
    def _group(self) -> dist.ProcessGroup:
        """A group that is created at the first use, which all ranks reach together."""
        model = self.joins_of()
        if model is not None and model.static_graph:
            raise UsageError(
                "--compress powersgd does not work with static_graph=True, because its buckets "
                "change when a run is resumed"
                "\ntip: use --compress bf16, or find_unused_parameters=True"
            )
        return self.ranks.own_group(self.options.timeout_s)

    def send(self, bucket: dist.GradBucket) -> Future[Tensor]:
        # torch sends the factors from gloo's threads. Each bucket waits for the one before it, in a
        # group that nothing else uses, so collectives have the same order on every rank.
        if self._last is not None and self.device.type == "cpu":
            waits.during(self._last.wait)
        index, buffer = bucket.index(), bucket.buffer()
        if self._state.error_dict.get(index, buffer).shape != buffer.shape:
            self._begin()  # a run has resumed with another --bucket-mb
        self._state.process_group = self._group
        before = self._state.total_numel_after_compression
        self._last = powerSGD_hook(self._state, bucket)
        memories = (self._state.p_memory_dict, self._state.q_memory_dict)
        factors = [memory[index] for memory in memories if index in memory]
        values = self._state.total_numel_after_compression - before or buffer.numel()
        rest = buffer[: values - sum(map(len, factors))]
        for sent in (rest, *factors):
            self.ranks.ledger.gradient("all_reduce", sent)
        return self._last

    def state(self) -> dict[str, Tensor]:
        kept = {
            f"{kind}/{index}": tensor
            for kind in STATE_KEYS
            for index, tensor in getattr(self._state, kind).items()
        }
        random = self._state.rng.get_state(legacy=False)["state"]
        kept["rng"] = torch.tensor([*random["key"].tolist(), random["pos"]])
        kept["iter"] = torch.tensor(self._state.iter)
        # This differs by rank, so it is missing on another number of ranks, where buckets may
        # differ.
        kept["rank"] = torch.tensor(self.ranks.rank)
        return {self._prefix + name: tensor for name, tensor in kept.items()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state`; start afresh if the compressor or number of ranks has changed."""
        self._begin()
        if f"{self._prefix}rank" not in state:
            return
        self._state.iter = int(state[f"{self._prefix}iter"])
        *key, position = state[f"{self._prefix}rng"].tolist()
        random = {"bit_generator": RANDOM, "state": {"key": key, "pos": position}}
        self._state.rng.set_state(random)
        for name, tensor in state.items():
            kind, _, index = name.removeprefix(self._prefix).partition("/")
            if name.startswith(self._prefix) and kind in STATE_KEYS:
                getattr(self._state, kind)[int(index)] = tensor.to(self.device)


def _problems(model: nn.Module) -> Iterator[str]:
    """Yield a line for each parameter that torch's hook cannot view as a matrix."""
    sparse = {
        weight
        for module in model.modules()
        if getattr(module, "sparse", False)
        for weight in module.parameters(recurse=False)
    }
    for name, param in model.named_parameters():
        is_matrix = param.ndim > 0 and param.numel() > 0 and param.is_contiguous()
        if param.requires_grad and not (
            is_matrix and param.is_floating_point() and param not in sparse
        ):
            yield (
                f"{name} must be a contiguous real-valued tensor with a dense gradient and at "
                "least one dimension"
                "\ntip: use --compress bf16"
            )


build = PowerSgd
