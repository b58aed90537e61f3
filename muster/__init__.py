"""What a program imports: to train on many ranks, to work with its launcher, to start other runs.

    sync, sync_ddp          gradients become the mean over ranks, in any training loop
    init, steps             rank and device; which rank computes which samples
    evaluate                any metric of Hugging Face's evaluate
    checkpoints, record     save and resume; records that reports and comparisons read
    on_stop, stopping       a program that is asked to stop ends cleanly
    launch, map, job, Job   functions on many machines, from Python
    MusterError             any error of Muster
    UsageError, RunFailed   what was asked for is wrong; a run has failed

Pages: docs/library.md, docs/own-programs.md (stopping), docs/python.md (functions).

The import needs the standard library alone and loads only what is used: no torch.
"""

import sys
from importlib import import_module

from muster.errors import MusterError, RunFailed, UsageError
from muster.orderly_stop import on_stop, stopping

_PLACES = {
    "Job": "muster.remote_job",
    "job": "muster.remote_job",
    "launch": "muster.launching",
    "map": "muster.launching",
    # these need torch
    "checkpoints": "_train.program.saved_objects",
    "evaluate": "_train.evaluation.evaluate_metrics",
    "init": "_train.program.rank_of_run",
    "record": "_train.program.recorder",
    "steps": "_train.batches.steps",
    "sync": "_train.sync.ddp.data_parallel",
    "sync_ddp": "_train.sync.ddp.data_parallel",
}
__all__ = ["MusterError", "RunFailed", "UsageError", "on_stop", "stopping", *_PLACES]  # noqa: PLE0604
_NAMES = {"map": "map_items"}  # so that it does not hide Python's own


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    found: object = getattr(import_module(_full(_PLACES[name])), _NAMES.get(name, name))
    return found


def _full(place: str) -> str:
    """The module to import: one that our trainer has loaded is not loaded a second time."""
    if not place.startswith("_train."):
        return place
    is_own = getattr(sys.modules.get("train"), "IS_MUSTER", False)
    return place.replace("_train.", "train." if is_own else "muster._train.", 1)
