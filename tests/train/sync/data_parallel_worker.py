"""One of two ranks that run each loop of user_loops.py with DDP and with `muster.sync`.

Some loops also run with Accelerate's DDP and `muster.sync_ddp`.

Started by test_data_parallel.py: `data_parallel_worker.py FOLDER`. Each rank writes the differences
that it finds, by the name of the loop and its mode.
"""

import copy
import importlib.util
import itertools
import json
import re
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

import muster
from tests.train.sync import data_parallel_compression
from tests.train.sync.user_loops import LOOPS, Words, inputs, net, trained
from train.program.recorder import sent_by
from train.sync.step_times import timer_of
from train.worker import end_process

MODES = ("all_reduce", "gather_scatter", "ddp")
# Loops that may differ if a framework makes DDP: here it is Accelerate, with these options of ours.
OF_FRAMEWORKS = [
    "a_large_embedding", "a_large_embedding_beside_reentrant_checkpointing", "accumulation",
    "nothing_but_a_large_embedding", "tied_weights", "buffers_of_all_kinds",
    "uneven_inputs_divided_by_the_ranks_left",
]  # fmt: skip
OPTIONS = ({}, {"sparse_rows": False}, {"bucket_mb": 0.01})
if HAS_ACCELERATE := importlib.util.find_spec("accelerate") is not None:
    from accelerate import Accelerator
    from accelerate.utils import DistributedDataParallelKwargs


def outcome(loop: Callable[[Any], Any], wrap: Any) -> list[Any]:
    """Return the loop's numbers, and last the error with which it ended, if any."""
    numbers: list[Any] = []
    try:
        numbers.extend(
            value.detach().clone() if isinstance(value, torch.Tensor) else value
            for value in loop(wrap) or ()
        )
    except Exception as error:  # noqa: BLE001 (it is compared)
        named = str(error).splitlines()[0].replace("SyncedDataParallel", "DistributedDataParallel")
        numbers.append(f"{type(error).__name__}: {named}")
    return numbers


def difference(found: list[Any], wanted: list[Any]) -> str:
    """Return what differs; "" if nothing does."""
    if len(found) != len(wanted):
        return f"{len(found)} results ({found[-1:]}), not {len(wanted)} ({wanted[-1:]})"
    for index, (value, want) in enumerate(zip(found, wanted, strict=True)):
        if isinstance(want, torch.Tensor) and isinstance(value, torch.Tensor):
            limit = 1e-6 if want.dtype == torch.float32 else 1e-12
            try:
                torch.testing.assert_close(value, want, rtol=limit, atol=limit)
            except AssertionError as error:
                return f"result {index}: {error}"
        elif value != want:
            return f"result {index}: {value}, not {want}"
    return ""


def side_by_side() -> dict[str, str]:
    gaps = {}
    for name, loop in LOOPS.items():
        wanted = outcome(loop, DistributedDataParallel)
        for mode in MODES:
            wrap = partial(muster.sync, mode=mode)
            gaps[f"{name} {mode}"] = difference(outcome(loop, wrap), wanted)
        for given in OPTIONS if HAS_ACCELERATE and name in OF_FRAMEWORKS else ():
            done = outcome(loop, partial(by_accelerate, **given))
            gaps[f"{name} sync_ddp"] = gaps.get(f"{name} sync_ddp") or difference(done, wanted)
        gaps[f"{name} comes to something"] = "" if wanted else "nothing to compare"
    return gaps


def by_accelerate(model: nn.Module, **options: Any) -> nn.Module:
    """Return `model` in DDP, as a script with Accelerate makes it."""
    names = ("sparse_rows", "bucket_mb", "compress")
    ours = {name: options.pop(name) for name in names if name in options}
    handler = DistributedDataParallelKwargs(**options)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    assert muster.sync_ddp(accelerator, **ours) is accelerator
    prepared: nn.Module = accelerator.prepare_model(model)
    assert isinstance(prepared, DistributedDataParallel) and prepared._comm_hooks
    return prepared


def it_is_ddp() -> None:
    for mode in MODES:
        model = muster.sync(net(), mode)
        assert isinstance(model, DistributedDataParallel)
        defaults = DistributedDataParallel(net())
        for name in ("find_unused_parameters", "gradient_as_bucket_view", "static_graph"):
            assert getattr(model, name) == getattr(defaults, name)
        assert bool(model._comm_hooks) == (mode != "ddp")
        assert (type(model) is DistributedDataParallel) == (mode == "ddp")


def a_hook_of_the_users_goes_where_there_is_none() -> None:
    """DDP accepts only one hook, and says so."""
    with pytest.raises(RuntimeError, match="register_comm_hook"):
        muster.sync(net()).register_comm_hook(None, default_hooks.allreduce_hook)
    model, plain = muster.sync(net(), "ddp"), DistributedDataParallel(net())
    model.register_comm_hook(None, default_hooks.allreduce_hook)
    assert difference(list(trained(model)), list(trained(plain))) == ""


def only_rows_in_use_travel() -> None:
    model = muster.sync(Words())
    for _ in trained(model, steps=2):
        pass
    sent = sum(entry.nbytes for entry in model.hook.ranks.ledger.step)  # of the last pass alone
    assert 0 < sent < 0.1 * model.module.words.weight.nbytes
    whole = muster.sync(Words(), sparse_rows=False)
    for _ in trained(whole, steps=2):
        pass
    nbytes = sum(param.nbytes for param in whole.parameters())
    assert sum(entry.nbytes for entry in whole.hook.ranks.ledger.step) == nbytes


def records_have_what_was_sent() -> None:
    """They also have the times, from the second step on; a copy sends the same as the model."""
    for mode in MODES:
        made = muster.sync(net(), mode)
        for step, model in itertools.product(range(3), (made, copy.deepcopy(made))):
            with model.no_sync():
                model(inputs(step)).square().mean().backward()
            model(inputs(step)).square().mean().backward()
            taken = timer_of(model).end_step().seconds()
            sent = sent_by(model)
            nbytes = sum(param.nbytes for param in model.parameters())
            assert sum(entry.nbytes for entry in sent) == nbytes * (1 + (mode == "gather_scatter"))
            if step:
                assert min(taken["forward"], taken["backward"], taken["sync_in_passes"]) > 0


def refusals() -> None:
    with pytest.raises(muster.UsageError, match="world_size is 2"):
        muster.sync(net(), "single")
    with pytest.raises(muster.UsageError, match="bucket_mb"):  # on all ranks alike
        muster.sync(net(), bucket_mb=-1)


def refusals_of_frameworks() -> None:
    hooked, late = Accelerator(cpu=True), Accelerator(cpu=True)
    hooked.ddp_handler = DistributedDataParallelKwargs(comm_hook="fp16")
    late.prepare(net())
    for framework, given, text in (
        (Accelerator(cpu=True), {"bucket_mb": "large"}, "bucket_mb is 'large'"),
        (Accelerator(cpu=True), {"compress": "zip"}, "compress is 'zip'"),
        (hooked, {}, "communication hook"),
        (late, {}, "prepare"),
        (nn.Linear(1, 1), {}, "got Linear"),
    ):
        with pytest.raises(muster.UsageError, match=re.escape(text)):
            muster.sync_ddp(framework, **given)


def errors_reach_the_backward_pass() -> None:
    """Errors of the thread and of the pass itself appear on their own rank; the other rank fails
    when that rank has ended because of them, so this comes last."""
    model, midway = muster.sync(net(), "gather_scatter"), muster.sync(net())
    for module in (model, midway):
        list(trained(module))
    is_first = dist.get_rank() == 0
    if is_first:
        model.hook._gather = lambda piece, group: 1 / 0
        midway.module[0].weight.register_hook(lambda _: 1 / 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError" if is_first else ""):
        model(inputs(0)).square().mean().backward()
    with pytest.raises(ZeroDivisionError if is_first else RuntimeError):
        midway(inputs(0)).square().mean().backward()
    if is_first:
        with pytest.raises(RuntimeError, match="finished reduction in the prior iteration"):
            midway(inputs(1))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    gaps = side_by_side()
    it_is_ddp()
    a_hook_of_the_users_goes_where_there_is_none()
    only_rows_in_use_travel()
    data_parallel_compression.check([muster.sync, *([by_accelerate] if HAS_ACCELERATE else [])])
    records_have_what_was_sent()
    refusals()
    if HAS_ACCELERATE:
        refusals_of_frameworks()
    Path(sys.argv[1], f"rank_{dist.get_rank()}.json").write_text(json.dumps(gaps))
    errors_reach_the_backward_pass()


if __name__ == "__main__":
    main()
    end_process(0)
