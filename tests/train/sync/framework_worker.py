"""One of two ranks: Accelerate with `muster.sync_ddp` has the gradients that it has without."""

import copy
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import muster
from train.sync.base import SyncOptions
from train.sync.compression.int8 import Int8
from train.sync.ddp.data_parallel import Way
from train.sync.ranks import CollectiveLedger
from train.worker import end_process


def net() -> nn.Module:
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(
        nn.Embedding(3000, 96), nn.Flatten(), nn.Linear(5 * 96, 8), nn.Linear(8, 2)
    ).double()


def gradients(model: nn.Module, accelerator: Accelerator) -> list[torch.Tensor]:
    """After two steps, the second of two micro-batches."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for last in (True, False, True):
        tokens = torch.randint(0, 3000, (4, 5), generator=generator)
        if last:
            accelerator.backward(model(tokens).square().mean())
        else:
            optimizer.step()
            optimizer.zero_grad()
            with accelerator.no_sync(model):
                accelerator.backward(model(tokens).square().mean())
    return [param.grad.clone() for param in model.parameters()]


def relative(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    pairs = zip(found, wanted, strict=True)
    return max(float((one - want).norm() / want.norm()) for one, want in pairs)


def accelerator_with(model: nn.Module, **options: Any) -> Accelerator:
    made = muster.sync_ddp(Accelerator(cpu=True), model, **options)
    assert isinstance(made, Accelerator)
    return made


class Checkpointed(nn.Module):
    """A large embedding before a layer that is checkpointed the reentrant way."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.words, self.last = nn.Embedding(3000, 96), nn.Linear(96, 2)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.last, self.words(tokens).mean(1), use_reentrant=True)


class OnlyWords(nn.Module):
    """Nothing but a large embedding trains."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.words, self.last = nn.Embedding(3000, 96), nn.Linear(96, 2)
        self.last.requires_grad_(False)
        self.double()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(self.words(tokens).mean(1))


def trained(model: nn.Module, accelerator: Accelerator) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ddp, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(3):
        accelerator.backward(ddp(torch.randint(0, 3000, (4, 5), generator=generator)).sum())
        optimizer.step()
        optimizer.zero_grad()
    return [param.detach().clone() for param in model.parameters()]


def nothing_is_hidden_from_ddp() -> None:
    for kind in (Checkpointed, OnlyWords):
        wanted = trained(kind(), Accelerator(cpu=True))
        model = kind()
        assert relative(trained(model, accelerator_with(model)), wanted) < 1e-12
        torch.manual_seed(dist.get_rank())
        plain = kind()
        model.load_state_dict(plain.state_dict())
        later = trained(model, Accelerator(cpu=True))  # DDP as it comes, of the same model
        assert relative(later, trained(plain, Accelerator(cpu=True))) < 1e-12


def what_was_sent_is_forgotten() -> None:
    """A framework never asks for it: the list must not grow."""
    options = SyncOptions(compress="int8")
    model = DistributedDataParallel(net())
    hook = Way(Int8, options).register(model, CollectiveLedger())
    lengths = []
    for _ in range(4):
        model(torch.zeros(4, 5, dtype=torch.int64)).sum().backward()
        lengths.append(len(hook.ranks.ledger.step))
    assert lengths[1:] == lengths[1:2] * 3 and lengths[1]


def refusals() -> None:
    for given, problem in (
        ({"bucket_mb": "large"}, "bucket_mb is 'large'"),
        ({"compress_share": 2}, "compress_share is 2"),
        ({"compress": "zip"}, "compress is 'zip'; known"),
    ):
        with pytest.raises(muster.UsageError, match=problem):
            muster.sync_ddp(Accelerator(cpu=True), **given)
    hooked = Accelerator(cpu=True)
    hooked.ddp_handler = DistributedDataParallelKwargs(comm_hook="fp16")
    with pytest.raises(muster.UsageError, match="has a communication hook"):
        muster.sync_ddp(hooked)
    late = Accelerator(cpu=True)
    late.prepare(net())
    with pytest.raises(muster.UsageError, match="call it before prepare"):
        muster.sync_ddp(late)
    text = re.escape("a Linear is no Accelerator, no transformers Trainer")
    with pytest.raises(muster.UsageError, match=text):
        muster.sync_ddp(nn.Linear(1, 1))


def main() -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    plain = net()
    wanted = gradients(copy.deepcopy(plain), accelerator)
    for options in ({}, {"sparse_rows": False}, {"bucket_mb": 0.01}):
        model = copy.deepcopy(plain)
        assert relative(gradients(model, accelerator_with(model, **options)), wanted) < 1e-14
    model = copy.deepcopy(plain)
    assert relative(gradients(model, muster.sync_ddp(Accelerator(cpu=True))), wanted) < 1e-14
    for compress, limit in (("bf16", 2e-2), ("int8", 5e-2)):
        model = copy.deepcopy(plain)
        found = gradients(model, accelerator_with(model, compress=compress))
        assert 1e-6 < relative(found, wanted) < limit, compress
    nothing_is_hidden_from_ddp()
    what_was_sent_is_forgotten()
    refusals()
    accelerator.end_training()


if __name__ == "__main__":
    main()
    end_process(0)
