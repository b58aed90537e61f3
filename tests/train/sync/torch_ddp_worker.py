"""Runs torch's own tests of DistributedDataParallel on gloo, with DDP and with `muster.sync`.

Started by test_torch_ddp.py: `torch_ddp_worker.py FOLDER`. It writes outcomes.json: how each test
that uses DDP ended with `muster.sync` and, if it did not pass, with DDP. The tests are installed
with torch: `torch.testing._internal.distributed.distributed_test`. Most need GPUs; here everything
that they put on a GPU stays on the CPU. Each test starts two processes, which are forked from this
process after all imports.
"""

import json
import logging
import os
import re
import sys
import tempfile
import types
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

RANKS = 2
NAME = "DistributedDataParallel"
TOO_LONG = {"test_ddp_compile_static_graph", "test_ddp_uneven_inputs"}  # minutes each, on a CPU
tempfile.tempdir = sys.argv[1]  # torch's tests leave files behind
# torch's tests read these when they are imported.
os.environ |= {
    "BACKEND": "gloo", "WORLD_SIZE": str(RANKS), "TEMP_DIR": sys.argv[1],
    "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "240", "OMP_NUM_THREADS": "1",
}  # fmt: skip
# The base class of torch's tests; only tests that rewrite their own source need more of it.
sys.modules["expecttest"] = expected = types.ModuleType("expecttest")
expected.TestCase, expected.ACCEPT = unittest.TestCase, False  # type: ignore[attr-defined]

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.testing._internal import common_distributed  # noqa: E402

import muster  # noqa: E402

SYNC = muster.sync  # loaded before the processes are forked
CPU = torch.device("cpu")


def as_it_is(test: Any) -> Any:
    return test


common_distributed.skip_if_no_gpu = as_it_is
common_distributed.skip_if_lt_x_gpu = lambda *_, **__: as_it_is
common_distributed.nccl_skip_if_lt_x_gpu = lambda *_, **__: as_it_is
common_distributed.init_multigpu_helper = lambda ranks, _: {rank: [rank] for rank in range(ranks)}
torch.cuda.set_device = lambda *_, **__: None
torch.cuda.synchronize = lambda *_, **__: None
torch.cuda.current_device = lambda: 0
module_to = nn.Module.to
nn.Module.cuda = lambda module, *_, **__: module
nn.Module.to = lambda module, *given, **named: module_to(module, *on_cpu(given), **named)

from torch.testing._internal.distributed import distributed_test as of_torch  # noqa: E402

TESTS = of_torch.DistributedTest._DistTestBase


class OnTheCpu(TorchFunctionMode):
    """Keeps on the CPU what is made on a GPU or sent to one."""

    def __torch_function__(
        self, function: Any, _: Any, given: tuple[Any, ...] = (), named: Any = None
    ) -> Any:
        if function is torch.Tensor.cuda:
            return given[0]
        if function is torch.Tensor.to:
            given = given[:1] + on_cpu(given[1:])
        named = {name: CPU if name == "device" else value for name, value in (named or {}).items()}
        return function(*given, **named)


def on_cpu(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a `to`, with the CPU in place of each device."""
    return tuple(
        CPU if type(argument) in (int, str, torch.device) else argument for argument in given
    )


def made_by(make: Callable[..., nn.Module]) -> type:
    """Return a class for torch's tests whose instances come from `make`, on the CPU."""

    def new(_: type, module: nn.Module, device_ids: Any = None, *more: Any, **options: Any) -> Any:
        options.pop("device_ids", None), options.pop("output_device", None)
        return make(module, **options)

    return type(NAME, (DistributedDataParallel,), {"__new__": new})


KINDS = {"ddp": made_by(DistributedDataParallel), "muster": made_by(SYNC)}


class Suite(of_torch.TestDistBackend, TESTS):  # type: ignore[name-defined,misc]
    """Forks the processes that torch's own runner spawns."""

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, *given: Any, **named: Any) -> None:
        with OnTheCpu():
            super()._run(*given, **named)


def names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            yield from names_in(part)


def uses_ddp(name: str, seen: set[str]) -> bool:
    """Whether a test, or a method of its class that it calls, makes a DDP."""
    function = vars(TESTS)[name]
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    names = {*names_in(function.__code__)}
    methods = [
        method for method in names - seen if isinstance(vars(TESTS).get(method), types.FunctionType)
    ]
    seen.update(methods)
    return NAME in names or any(uses_ddp(method, seen) for method in methods)


def outcome(name: str, kind: str) -> str:
    """Return "", "skipped", or the line of the error."""
    for module in (torch.nn.parallel, of_torch):
        setattr(module, NAME, KINDS[kind])
    result = unittest.TestResult()
    Suite(name).run(result)
    for _, text in (*result.errors, *result.failures):
        lines = [line for line in text.strip().splitlines() if re.match(r"[\w.]+: ", line)]
        return (lines or text.strip().splitlines())[-1]
    return "skipped" if result.skipped else ""


def main() -> None:
    (folder,) = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    Suite.setUpClass()
    names = [name for name in vars(TESTS) if name.startswith("test") and uses_ddp(name, {name})]
    outcomes = {}
    for name in sorted(set(names) - TOO_LONG):
        outcomes[name] = {"muster": outcome(name, "muster")}
        if outcomes[name]["muster"]:
            outcomes[name]["ddp"] = outcome(name, "ddp")
    Path(folder, "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
