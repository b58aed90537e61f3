"""What a program imports: to train on many ranks, to work with its launcher, to start other runs.

    sync, sync_ddp          gradients become the mean over ranks, in any training loop
    init, steps             rank and device; which rank computes which samples
    evaluate                any metric of Hugging Face's evaluate
    checkpoints, record     save and resume; records that reports and comparisons read
    on_stop, stopping       a program that is asked to stop ends cleanly
    launch, map, job, Job   functions on many machines, from Python
    MusterError             any error of Muster
    UsageError, RunFailed   a wrong argument, flag or file; a run has failed

Pages: docs/library.md, docs/own-programs.md (stopping), docs/python.md (functions).

The import needs the standard library alone and loads only what is used: no torch.
"""

import sys
from importlib import import_module
from importlib.util import find_spec

from muster.contracts import full_name
from muster.errors import MusterError, RunFailed, UsageError
from muster.orderly_stop import on_stop, stopping

__version__ = "0.3.0"  # of all parts of this checkout; setup.cfg reads it here
_MODULES = {
    "Job": "muster.remote_job",
    "job": "muster.job_lookup",
    "launch": "muster.launching",
    "map": "muster.launching",
    # these need torch
    "checkpoints": "train.program.saved_objects",
    "evaluate": "train.evaluation.evaluate_metrics",
    "init": "train.program.rank_of_run",
    "record": "train.program.recorder",
    "steps": "train.batches.steps",
    "sync": "train.sync.ddp.data_parallel",
    "sync_ddp": "train.sync.ddp.frameworks",
}
_NEED_NUMPY = ("checkpoints", "evaluate")
# Editors and type checkers read `__init__.pyi`, which `python -m tests.muster.stub_file` writes.
__all__ = ["MusterError", "RunFailed", "UsageError", "on_stop", "stopping", *_MODULES]  # noqa: PLE0604
_OTHER_NAMES = {"map": "map_items"}  # in its module, which also uses Python's own `map`


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    module = import_module(full_name(_MODULES[name]))
    value: object = getattr(module, _OTHER_NAMES.get(name, name))
    return value


def __dir__() -> list[str]:
    """The names that this Python can use; without torch, only names that do not need it."""
    return sorted([*filter(_is_usable, __all__), "__doc__", "__version__"])


def _is_usable(name: str) -> bool:
    packages = ["torch"] if _MODULES.get(name, "").startswith("train.") else []
    packages += ["numpy"] if name in _NEED_NUMPY else []
    return all(map(_is_installed, packages))


def _is_installed(package: str) -> bool:
    # find_spec raises for a module that was substituted for another, as tests do
    return sys.modules.get(package) is not None or find_spec(package) is not None
