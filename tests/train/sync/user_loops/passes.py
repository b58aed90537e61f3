"""Loops that go forward, backward and over their parameters in ways of their own."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor, nn

from tests.train.sync.user_loops.base import LOOPS, Wrap, gradients, inputs, loop, net, trained


@loop
def a_penalty_with_a_pass_of_its_own(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        sum(one.square().sum() for one in model.parameters()).mul(1e-2).backward()
        yield from gradients(model)


@loop
def the_module_trained_between(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        with model.no_sync():
            model.module(inputs(step + 9)).square().mean().backward()
        yield from gradients(model)


@loop
def a_gradient_penalty(wrap: Wrap) -> Iterator[Any]:
    """WGAN's: the gradient for the inputs is part of the loss."""
    model = wrap(net())
    for step in range(3):
        values = inputs(step).requires_grad_()
        scores = model(values)
        (slope,) = torch.autograd.grad(scores.sum(), values, create_graph=True)
        (scores.mean() + slope.square().mean()).backward()
        yield from gradients(model)


@loop
def a_gradient_penalty_with_a_pass_of_its_own(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net(), find_unused_parameters=True)  # the last bias has no part in a slope
    for step in range(3):
        model(inputs(step)).square().mean().backward()
        values = inputs(step).requires_grad_()
        (slope,) = torch.autograd.grad(model(values).sum(), values, create_graph=True)
        slope.square().mean().backward()
        yield from gradients(model)


@loop
def a_backward_pass_that_makes_a_graph(wrap: Wrap) -> Iterator[Any]:
    """As for second derivatives of the parameters; of several layers DDP itself refuses it."""

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
def force_matching(wrap: Wrap) -> Iterator[Any]:
    """The loss is of the energy's gradient alone."""
    model = wrap(net(), find_unused_parameters=True)
    for step in range(3):
        places = inputs(step).requires_grad_()
        (force,) = torch.autograd.grad(model(places).square().sum(), places, create_graph=True)
        (force + inputs(step + 5)).square().mean().backward()
        yield from gradients(model)


@loop
def a_forward_that_returns_a_parameter(wrap: Wrap) -> Iterator[Any]:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.scale = net(), nn.Parameter(torch.ones(6, dtype=torch.float64))

        def forward(self, values: Tensor) -> tuple[Tensor, nn.Parameter]:
            return self.inner(values), self.scale

    model = wrap(Scaled())
    for step in range(3):
        found, scale = model(inputs(step))
        (found * scale).square().mean().backward()
        yield from gradients(model)
    yield len(model.module.scale._backward_hooks or ())


@loop
def a_collective_across_the_backward_pass(wrap: Wrap) -> Iterator[Any]:
    """It is under way in the default group, which is DDP's too, while gradients are sent."""
    model = wrap(net())
    for step in range(3):
        loss = model(inputs(step)).square().mean()
        total = loss.detach().clone()
        work = dist.all_reduce(total, async_op=True)
        loss.backward()
        work.wait()
        yield total
        yield from gradients(model)


@loop
def wrapped_again(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    inner[0].requires_grad_(False)
    yield from trained(wrap(inner))
    inner[0].requires_grad_(True)
    yield from trained(wrap(inner))
    yield from trained(wrap(inner))


@loop
def two_models_that_share_layers(wrap: Wrap) -> Iterator[Any]:
    last = net()
    first, second = wrap(nn.Sequential(net(), last)), wrap(nn.Sequential(net(), last))
    for step in range(3):
        first(inputs(step)).square().mean().backward()
        second(inputs(step)).square().mean().backward()
        yield from gradients(first)
        yield from gradients(second)


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
def the_gradient_of_inputs_alone(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    values = inputs(0).requires_grad_()
    yield from torch.autograd.grad(model(values).sum(), values)
    yield from trained(model)


@loop
def adversaries(wrap: Wrap) -> Iterator[Any]:
    """Each is frozen while the other one trains."""
    maker, judge = wrap(net()), wrap(net())
    for step in range(3):
        judge.requires_grad_(False)
        judge(maker(inputs(step))).square().mean().backward()
        yield from gradients(maker)
        judge.requires_grad_(True)
        judge(maker(inputs(step)).detach()).square().mean().backward()
        yield from gradients(judge)


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
def twins_that_gather(wrap: Wrap) -> Iterator[Any]:
    """A contrastive loss over all ranks: a collective of the user's in the backward pass."""
    model = wrap(net())
    for step in range(3):
        ours = [model(inputs(step)), model(inputs(step + 5))]
        found = [torch.cat(torch.distributed.nn.functional.all_gather(one)) for one in ours]
        (found[0] @ found[1].T).square().mean().backward()
        yield from gradients(model)


@loop
def only_some_inputs_of_a_backward_pass(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    loss = model(inputs(0)).square().mean()
    loss.backward(inputs=list(model.parameters()))
    yield from gradients(model)


LOOPS |= {
    "layers_skipped_at_random": lambda wrap: trained(
        wrap(Skips(), find_unused_parameters=True), steps=6
    ),
    "a_static_graph": lambda wrap: trained(wrap(net(), static_graph=True), steps=4),
}
