"""Copies of a model, and what only one rank, thread or process does."""

import copy
import io
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.distributed_c10d import _get_default_store
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from tests.train.sync.user_loops.base import Words, Wrap, gradients, inputs, loop, net, trained


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
    """Of layers, large embeddings, and sparse gradients; of two models, torch asks the first."""
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
def a_group_of_ones_own(wrap: Wrap) -> Iterator[Any]:
    yield from trained(wrap(net(), process_group=dist.new_group()))
    own, _ = dist.new_subgroups_by_enumeration([[0], [1]])
    yield from trained(wrap(net(), process_group=own))


@loop
def random_numbers_stay(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    torch.manual_seed(3)
    wrap(inner)
    yield torch.rand(4)


@loop
def evaluated_on_one_rank(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    yield from trained(model)
    model.eval()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model(inputs(0))
    model.train()
    yield from trained(model)


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
def forked_loaders(wrap: Wrap) -> Iterator[Any]:
    """Their processes begin when the model's threads, if it has any, are there already."""
    model = wrap(net())
    yield from trained(model)
    samples = [*inputs(0), *inputs(1)]
    loader = DataLoader(samples, batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for values in loader:
            model(values).square().mean().backward()
            yield from gradients(model)


@loop
def groups_made_again(wrap: Wrap) -> Iterator[Any]:
    inner = net()
    for _ in range(2):
        yield from trained(wrap(inner))
        rank, world_size, store = dist.get_rank(), dist.get_world_size(), _get_default_store()
        dist.barrier()
        dist.destroy_process_group()
        dist.init_process_group(
            "gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=300),
            store=dist.PrefixStore("again", store),  # what is in it is of the group before
        )  # fmt: skip


@loop
def one_rank_without_the_model_in_a_step(wrap: Wrap) -> Iterator[Any]:
    """DDP sends nothing in it, so from then on that rank is a step behind the other."""
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
def one_rank_with_the_gradient_of_inputs_alone(wrap: Wrap) -> Iterator[Any]:
    model = wrap(net())
    yield from trained(model)
    if dist.get_rank() == 0:
        values = inputs(0).requires_grad_()
        yield from torch.autograd.grad(model(values).sum(), values)
    yield from trained(model)
