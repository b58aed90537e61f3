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

import muster
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


def refusals() -> None:
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
    refusals()
    accelerator.end_training()


if __name__ == "__main__":
    main()
    end_process(0)
