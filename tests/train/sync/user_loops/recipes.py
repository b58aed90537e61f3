"""Loops with what PyTorch has for training: lower precision, checkpoints, compiling."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed.nn.functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.train.sync.user_loops.base import Wrap, gradients, inputs, loop, net, trained


@loop
def gradients_in_a_buffer_of_ones_own(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    params = list(model.parameters())
    flat = torch.zeros(sum(one.numel() for one in params), dtype=torch.float64)
    for one, part in zip(params, flat.split([one.numel() for one in params]), strict=True):
        one.grad = part.view_as(one)
    seen: list[bool] = []
    params[0].register_post_accumulate_grad_hook(lambda one: seen.append(one.grad is not None))
    for step in range(2):
        model(inputs(step)).square().mean().backward()
        yield flat.clone()
        flat.zero_()
    yield torch.tensor(seen)


@loop
def accumulation(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net(), gradient_as_bucket_view=True)
    for step in range(6):
        with nullcontext() if step % 3 == 2 else model.no_sync():
            model(inputs(step)).square().mean().backward()
        yield from (one.grad.clone() for one in model.parameters())
    for step in range(6):  # as nanoGPT does it
        model.require_backward_grad_sync = step % 3 == 2
        model(inputs(step)).square().mean().backward()
        yield from (one.grad.clone() for one in model.parameters())


@loop
def frozen_afterwards(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net(), find_unused_parameters=True)
    yield from trained(model)
    model.module[0].requires_grad_(False)
    yield from trained(model)


@loop
def lower_precision(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net().float())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs(step).float()).square().mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        yield nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        yield from gradients(model)


@loop
def lbfgs(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 6, dtype=torch.float64)).square().mean()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    yield from model.parameters()


@loop
def checkpointing(wrap: Wrap) -> Iterator[Any]:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = net()

        def forward(self, values: Tensor) -> Tensor:
            for _ in range(2):
                values = checkpoint(self.layer, values, use_reentrant=False)
            return values

    yield from trained(wrap(Twice()))


@loop
def compiled(wrap: Wrap) -> Iterator[Any]:
    inside, around, after = wrap(torch.compile(net(), backend="eager")), wrap(net()), wrap(net())
    after.compile(backend="eager")
    call = torch.compile(around, backend="eager")
    for step in range(2):
        inside(inputs(step)).square().mean().backward()
        yield from gradients(inside)
        call(inputs(step)).square().mean().backward()
        yield from gradients(around)
        after(inputs(step)).square().mean().backward()
        yield from gradients(after)


@loop
def an_optimizer_made_before(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    optimizer = torch.optim.AdamW(inner.parameters(), lr=0.1)
    model = wrap(inner)
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    yield from model.parameters()
