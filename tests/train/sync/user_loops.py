"""Uses of DDP in scripts that a hook or a bucket of ours can break.

Each loop takes `wrap`, runs with it, and returns the resulting numbers. `wrap(model, **options)` is
DDP itself, or `muster.sync` in a mode; the numbers must be the same. Torch's own tests of DDP check
what only torch decides (test_torch_ddp.py).
"""

import copy
import io
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

Wrap = Callable[..., nn.Module]
LOOPS: dict[str, Callable[[Wrap], Any]] = {}


def loop(function: Callable[[Wrap], Any]) -> Callable[[Wrap], Any]:
    LOOPS[function.__name__] = function
    return function


def inputs(step: int, width: int = 6) -> Tensor:
    """Return this rank's inputs."""
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    return torch.randn(4, width, generator=generator, dtype=torch.float64)


def net(*extra: nn.Module) -> nn.Sequential:
    """Return a network with different weights on each rank."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6), *extra).double()


def gradients(model: nn.Module) -> list[Tensor | None]:
    found = [None if one.grad is None else one.grad.clone() for one in model.parameters()]
    model.zero_grad()
    return found


def trained(
    model: nn.Module, steps: int = 3, scale: Callable[[Tensor], Tensor] = torch.mean
) -> Any:
    """Yield the gradients of some steps, and the parameters after them."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        scale(model(inputs(step)).square()).backward()
        yield from (None if one.grad is None else one.grad.clone() for one in model.parameters())
        optimizer.step()
        optimizer.zero_grad()
    yield from (one.detach().clone() for one in model.parameters())


class Words(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.words, self.last = nn.Embedding(3000, 96, **options), nn.Linear(96, 2)
        self.double()

    def forward(self, values: Tensor) -> Tensor:
        tokens = (values.abs() * 900).long() % 3000
        return self.last(self.words(tokens).mean(1))


class Forms(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(dist.get_rank())
        self.scale = nn.Parameter(torch.randn(3, 2).t())
        self.empty = nn.Parameter(torch.zeros(0))
        self.mix = nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last)
        self.normed = parametrizations.weight_norm(nn.Linear(6, 6))
        self.double()

    def forward(self, values: Tensor) -> Tensor:
        mixed = self.mix(self.normed(values).view(-1, 2, 3, 1))[..., 0]
        return mixed * self.scale + self.empty.sum()


@loop
def a_large_embedding(wrap: Wrap) -> Iterator[Any]:
    model = wrap(Words())
    yield from trained(model)
    with model.no_sync():
        model(inputs(7)).square().mean().backward()
    model(inputs(8)).square().mean().backward()
    yield from gradients(model)


@loop
def a_large_embedding_beside_reentrant_checkpointing(wrap: Wrap) -> Iterator[Any]:
    class Checkpointed(Words):
        def forward(self, values: Tensor) -> Tensor:
            found = self.words((values.abs() * 900).long() % 3000).mean(1)
            return checkpoint(self.last, found, use_reentrant=True)

    yield from trained(wrap(Checkpointed()))


@loop
def nothing_but_a_large_embedding(wrap: Wrap) -> Iterator[Any]:
    inner = Words()
    inner.last.requires_grad_(False)
    yield from trained(wrap(inner))


@loop
def an_embedding_that_no_rank_uses(wrap: Wrap) -> Iterator[Any]:
    class Seldom(Words):
        def forward(self, values: Tensor) -> Tensor:
            found = super().forward(values)
            return found if self.uses else self.last(values.new_ones(4, 96))

    model = wrap(Seldom(), bucket_cap_mb=1e-6, find_unused_parameters=True)
    for step in range(4):
        model.module.uses = step % 2
        model(inputs(step)).square().mean().backward()
        yield from gradients(model)


@loop
def sparse_gradients(wrap: Wrap) -> Iterator[Any]:
    model = wrap(Words(sparse=True))
    sparse = torch.optim.SparseAdam([model.module.words.weight], lr=0.1)
    dense = torch.optim.SGD(model.module.last.parameters(), lr=0.1)
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        yield model.module.words.weight.grad.to_dense()
        for one in (sparse, dense):
            one.step()
            one.zero_grad()
    yield from model.parameters()


@loop
def complex_parameters(wrap: Wrap) -> Iterator[Any]:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(dist.get_rank())
            self.turn = nn.Parameter(torch.randn(6, 4, dtype=torch.complex128))

        def forward(self, values: Tensor) -> Tensor:
            return (values.to(self.turn.dtype) @ self.turn).abs()

    model = wrap(Turns())
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        yield from (torch.view_as_real(one) for one in gradients(model))


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = net(nn.BatchNorm1d(6))
        self.double()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(6, dtype=torch.bool))
        self.register_buffer("bank", torch.zeros(4, 6, dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        self.count += 1 + dist.get_rank()
        self.seen |= values[0] > 1
        self.bank.copy_(values)
        return self.inner(values)


@loop
def buffers_of_all_kinds(wrap: Wrap) -> Iterator[Any]:
    for options in ({}, {"broadcast_buffers": False}):
        model = wrap(Buffers(), **options)
        yield from trained(model)
        yield from (one.clone() for one in model.buffers())


@loop
def tied_weights(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    inner.append(nn.Linear(6, 8, dtype=torch.float64))
    inner[3].weight = inner[0].weight
    yield from trained(wrap(inner))


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


class Skips(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([net(), net(), net()])

    def forward(self, values: Tensor) -> Tensor:
        for at, layer in enumerate(self.layers):
            if (int(values.sum() * 100) + at) % 3:
                values = layer(values)
        return values + self.layers[0](values) * 0.1


@loop
def unused_without_saying_so(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    inner.register_parameter("unused", nn.Parameter(torch.ones(6, dtype=torch.float64)))
    yield from trained(wrap(inner))


@loop
def a_backward_pass_that_makes_a_graph(wrap: Wrap) -> Iterator[Any]:
    """As for second derivatives of the parameters; with several layers, DDP itself refuses it."""

    class Curve(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6, dtype=torch.float64))

        def forward(self, values: Tensor) -> Tensor:
            return values * self.scale**3

    for inner in (Curve(), net()):
        model = wrap(inner)
        for step in range(3):
            model(inputs(step)).square().mean().backward(create_graph=True)
            yield from (one.grad.detach().clone() for one in model.parameters())
            model.zero_grad()


@loop
def a_pass_that_fails_midway(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    for step in range(2):
        model(inputs(step)).square().mean().backward()
    found = model(inputs(2))
    handle = model.module[0].weight.register_hook(lambda _: 1 / 0)
    try:
        found.square().mean().backward()
    except ZeroDivisionError:
        handle.remove()
    yield from trained(model)


@loop
def one_rank_without_the_model_in_a_step(wrap: Wrap) -> Iterator[Any]:
    """DDP sends nothing in that step, so from then on that rank is a step behind the other."""
    model, rank = wrap(net()), dist.get_rank()
    for step in range(4):
        if (rank, step) == (1, 1):
            (0 * sum(one.sum() for one in model.parameters())).backward()
        else:
            model(inputs(step)).square().mean().backward()
        yield from gradients(model)
    if rank == 1:  # what the other has waited for
        model(inputs(4)).square().mean().backward()
        yield from gradients(model)


@loop
def backward_in_another_thread(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    for step in range(3):
        loss = model(inputs(step)).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        yield from gradients(model)


@loop
def copies(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    yield from trained(model)
    average = AveragedModel(model)
    average.update_parameters(model)
    yield from average.parameters()
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (copy.deepcopy(model), torch.load(stored, weights_only=False)):
        yield from trained(other)
    yield from trained(model)


@loop
def a_group_of_ones_own(wrap: Wrap) -> Iterator[Any]:
    yield from trained(wrap(net(), process_group=dist.new_group()))
    own, _ = dist.new_subgroups_by_enumeration([[0], [1]])
    yield from trained(wrap(net(), process_group=own))


@loop
def uneven_inputs(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for joined in (model.join(), Join([model])):
        with joined:
            for step in range(2 + 2 * dist.get_rank()):
                model(inputs(step)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        yield from (one.detach().clone() for one in model.parameters())


@loop
def uneven_inputs_divided_by_the_ranks_left(wrap: Wrap) -> Iterator[Any]:
    """For layers, large embeddings and sparse gradients; of two models, torch asks the first."""
    for inner, options in (
        (net(), {}),
        (Words(), {}),
        (Words(sparse=True), {}),
        (net(), {"static_graph": True}),
        (net(), {"find_unused_parameters": True}),
    ):
        model = wrap(inner, **options)
        with model.join(divide_by_initial_world_size=False):
            for step in range(2 + 2 * dist.get_rank()):
                model(inputs(step)).square().mean().backward()
                yield from gradients(model)
        yield len(gradients(model))
    models = [wrap(net()), wrap(net())]
    with Join(models, divide_by_initial_world_size=False):
        for step in range(2 + 2 * dist.get_rank()):
            for model in models:
                model(inputs(step)).square().mean().backward()
                yield from gradients(model)
    for model in models:  # the next ones are whole again
        with model.join():
            model(inputs(9)).square().mean().backward()
        yield from gradients(model)


@loop
def compiled(wrap: Wrap) -> Iterator[Any]:
    inside = wrap(torch.compile(net(), backend="eager"))
    around = wrap(net())
    call = torch.compile(around, backend="eager")
    for step in range(2):
        inside(inputs(step)).square().mean().backward()
        yield from gradients(inside)
        call(inputs(step)).square().mean().backward()
        yield from gradients(around)


LOOPS |= {
    "parameters_of_all_forms": lambda wrap: trained(wrap(Forms())),
    "a_bucket_for_each_parameter": lambda wrap: trained(wrap(Forms(), bucket_cap_mb=1e-6)),
    "layers_skipped_at_random": lambda wrap: trained(
        wrap(Skips(), find_unused_parameters=True), steps=6
    ),
}
