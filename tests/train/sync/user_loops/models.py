"""Models of all kinds, by outputs, embeddings, buffers, parameters, and functions of them."""

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.train.sync.user_loops.base import (
    LOOPS,
    Forms,
    Words,
    Wrap,
    gradients,
    inputs,
    loop,
    net,
    trained,
)


@dataclass
class Output:
    logits: Tensor


class Row(dict[str, Any]):
    pass


class Opaque(nn.Module):
    """Its output is of a kind that nothing looks into."""

    def __init__(self, kind: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.kind = net(), kind

    def forward(self, values: Tensor) -> Any:
        return self.kind(self.inner(values))

    def log_prob(self, values: Tensor) -> Tensor:
        return self.inner(values).square()


OPAQUE: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dataclass": (Output, lambda out: out.logits),
    "dict": (lambda logits: Row(logits=logits), lambda out: out["logits"]),
    "UserDict": (lambda logits: UserDict(logits=logits), lambda out: out["logits"]),
    "namespace": (lambda logits: SimpleNamespace(logits=logits), lambda out: out.logits),
    "set": (lambda logits: {logits}, lambda out: next(iter(out))),
    "distribution": (lambda logits: torch.distributions.Normal(logits, 1.0), lambda out: out.mean),
}


@loop
def outputs_that_nothing_looks_into(wrap: Wrap) -> Iterator[Any]:
    for kind, read in OPAQUE.values():
        model = wrap(Opaque(kind))
        for step in range(2):
            read(model(inputs(step))).square().mean().backward()
            yield from gradients(model)


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
def names_and_states(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net(nn.BatchNorm1d(6)))
    yield [name for name, _ in model.named_parameters()]
    yield list(model.state_dict())
    model.load_state_dict({name: one + 1 for name, one in model.state_dict().items()})
    yield from model.parameters()


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


@loop
def a_part_alone(wrap: Wrap) -> Iterator[Any]:
    torch.manual_seed(0)
    model = nn.Sequential(wrap(net()), nn.Linear(6, 6).double())
    model(inputs(0)).square().mean().backward()
    yield from gradients(model[0])


@loop
def functions_of_the_module(wrap: Wrap) -> Iterator[Any]:
    """Gradients of single samples beside the loop's own."""
    model = wrap(net())

    def loss_of(params: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model.module, params, (row,)).square().mean()

    of_each_row = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0))
    for step in range(3):
        values = inputs(step)
        params = {name: one.detach() for name, one in model.module.named_parameters()}
        yield from of_each_row(params, values).values()
        model(values).square().mean().backward()
        yield from gradients(model)
    with torch.no_grad():
        yield torch.func.vmap(model)(inputs(3))


@loop
def functions_of_the_wrapped_model(wrap: Wrap) -> Iterator[Any]:
    """What goes through other parameters leaves DDP without the gradients that it waits for."""
    model = wrap(net())
    for step in range(3):
        twice = {name: 2 * one for name, one in model.named_parameters()}
        loss = torch.func.functional_call(model, twice, (inputs(step),)).square().mean()
        loss.backward()
        yield from gradients(model)
    others = {name: one.detach().requires_grad_() for name, one in model.named_parameters()}
    torch.func.functional_call(model, others, (inputs(3),)).square().mean().backward()
    yield from (one.grad for one in others.values())
    yield from gradients(model)
    yield model(inputs(4))


LOOPS |= {
    "a_method_of_the_model": lambda wrap: wrap(Opaque(Output)).log_prob(inputs(0)).backward(),
    "parameters_of_all_forms": lambda wrap: trained(wrap(Forms())),
    "a_bucket_for_each_parameter": lambda wrap: trained(wrap(Forms(), bucket_cap_mb=1e-6)),
    "no_parameter_to_train": lambda wrap: wrap(nn.ReLU()),
    "an_option_that_ddp_has_not": lambda wrap: wrap(net(), unheard_of=True),
}
