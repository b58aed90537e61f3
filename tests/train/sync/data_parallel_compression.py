"""Checks of a compressed model on each of two ranks, for data_parallel_worker.py."""

import copy
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import muster
from tests.train.sync.user_loops import Forms, Words, inputs, net, trained


def a_copy_begins_with_nothing_left_out() -> None:
    model = muster.sync(net(), compress="powersgd", compress_rank=1)
    list(trained(model))
    fresh = muster.sync(copy.deepcopy(model.module), compress="powersgd", compress_rank=1)
    for tensor, twin in zip(trained(copy.deepcopy(model)), trained(fresh), strict=True):
        assert torch.equal(tensor, twin)


def compressed_is_about_the_mean(wraps: Sequence[Callable[..., Any]]) -> None:
    ways = (("bf16", 2e-2), ("fp16", 2e-3))
    for (way, limit), wrap in itertools.product(ways, wraps):
        for make in (net, Words):
            plain = DistributedDataParallel(make())
            model = wrap(make(), compress=way)
            for step in range(3):  # DDP changes its buckets after the first
                for module in (plain, model):
                    module.zero_grad()
                    module(inputs(step)).square().mean().backward()
                for param, want in zip(model.parameters(), plain.parameters(), strict=True):
                    assert (param.grad - want.grad).norm() <= limit * want.grad.norm() + 1e-9, way


def models_of_all_forms_are_compressed() -> None:
    for way, make in itertools.product(("bf16", "fp16", "powersgd"), (Forms, net, Words)):
        if (way, make) == ("powersgd", Forms):  # refused: it has forms that are no matrix
            continue
        model = muster.sync(make(), compress=way, bucket_mb=0)
        for tensor in trained(model):
            assert tensor.isfinite().all()


def inputs_may_be_uneven() -> None:
    """Divided by the number of ranks that have inputs left, rank 1's second gradient is its own."""
    for way, limit in (("bf16", 2e-2), ("powersgd", 1e-9)):
        alone, model = net(), muster.sync(net(), compress=way)
        alone.load_state_dict(model.module.state_dict())
        with model.join(divide_by_initial_world_size=False):
            for step in range(1 + dist.get_rank()):
                for module in (alone, model):
                    module.zero_grad()
                    module(inputs(step)).square().mean().backward()
        if dist.get_rank() == 1:
            for param, want in zip(model.parameters(), alone.parameters(), strict=True):
                assert (param.grad - want.grad).norm() <= limit * want.grad.norm(), way


def half_precision_is_divided_before_it_is_added() -> None:
    for options in ({}, {"compress": "fp16"}):
        model = muster.sync(nn.Linear(1, 1, bias=False).half(), **options)
        (model(torch.ones(1, 1).half()) * 40000).sum().backward()
        assert model.module.weight.grad.item() == pytest.approx(40000)


def check(wraps: Sequence[Callable[..., Any]]) -> None:
    a_copy_begins_with_nothing_left_out()
    compressed_is_about_the_mean(wraps)
    models_of_all_forms_are_compressed()
    inputs_may_be_uneven()
    half_precision_is_divided_before_it_is_added()
