"""Any metric of `evaluate` on any number of ranks, with the same result as in a single process.

Rank 0 gathers the samples of all ranks, in their order, loads the module and computes in memory,
while the others wait; all ranks get its result. Samples are sent as JSON, through gloo and CPU
memory. Only rank 0 needs the module.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from torch import Tensor

from muster.errors import MusterError, UsageError, text_of

from ..distributed.agreement import broadcast_result, gather_on_first
from ..model import rng
from ..sync.ranks import current_ranks
from .metric_modules import in_memory, load

POSITIONS = "positions"
Columns = dict[str, list[Any]]  # one entry per sample


def evaluate(
    metric: Any,
    *,
    predictions: Any = None,
    references: Any = None,
    positions: Any = None,
    config_name: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Compute a metric of `evaluate` over the samples of all ranks; every rank gets the result.

    Every rank of torch's default group must call it with its own samples: any number of them, or
    none. Without a group the process is a single rank. Rank 0 receives all samples, through gloo
    and CPU memory, and all ranks wait while it computes. So the call waits for the device if
    samples are on it. (`my_metric.py` is the one in docs/library.md.)

        >>> muster.evaluate("./my_metric.py", predictions=[0, 1, 1, 0], references=[0, 1, 0, 0])
        {'f1': 0.6666666666666666, 'n': 4}

    Args:
        metric: a file (`./my_metric.py`), a name (`f1`), a loaded module, or several of them in a
            list, or in a dict, whose names are prefixed to results that would otherwise have the
            same name. Only rank 0's metric counts.
        predictions: one entry per sample of this rank, (n, ...): a tensor, an array or a list.
        references: the true values, in the same form.
        positions: whole numbers (n,) from 0 up, each sample's place in the whole set. The metric
            gets the samples in that order, and only one for each place, so that a sample that a
            sampler gave out twice counts once. Without positions, samples are in rank order.
        config_name: configuration of the module, such as `mrpc` of `glue`.
        more: other columns that the module takes, and arguments of its `compute`.

    Raises:
        UsageError: there is no such metric, the samples do not fit it, or only some of the ranks
            with samples gave a column.
        MusterError: the metric failed; the message contains its error. If any rank raises an error,
            the other ranks raise a MusterError with the same message.
    """
    ranks = current_ranks()
    own = ranks.rank, ranks.world_size
    columns = {"predictions": predictions, "references": references} | more
    with ExitStack() as restored:
        loaded = list[Any]()

        def load_metric() -> list[str]:
            loaded.append(_load(metric, config_name))
            modules = getattr(loaded[0], "evaluation_modules", loaded)
            for module in modules:
                restored.enter_context(in_memory(module))
            columns_taken = [name for module in modules for name in module._feature_names()]
            return list(dict.fromkeys(columns_taken))

        names = broadcast_result(*own, load_metric)
        local = {name: columns.get(name) for name in names} | {POSITIONS: positions}
        arguments = {name: value for name, value in more.items() if name not in names}

        def local_columns() -> Columns:
            return {name: _as_list(values) for name, values in local.items() if values is not None}

        parts = gather_on_first(*own, local_columns)
        return dict(broadcast_result(*own, lambda: _compute(loaded[0], parts, names, arguments)))


def _compute(
    module: Any, parts: Sequence[Columns], names: Iterable[str], arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the module's result on all columns, in the order of the positions if there are any.

    Raises:
        UsageError: a column is missing on some rank, columns differ in length, or positions are
            not whole numbers from 0 up.
        MusterError: the module raised an error, or did not return a dict.
    """
    label = getattr(module, "name", "") or ", ".join(module.evaluation_module_names)
    columns = Columns()
    for rank, part in enumerate(parts):
        if len(set(map(len, part.values()))) > 1:
            counts = ", ".join(f"{len(column)} {name}" for name, column in part.items())
            raise UsageError(
                f"the metric's input on rank {rank} has {counts}\ntip: pass one of each per sample"
            )
        for name, column in part.items():
            columns.setdefault(name, []).extend(column)
    for name in columns:
        giving = [rank for rank, part in enumerate(parts) if name in part]
        lacking = [
            rank for rank, part in enumerate(parts) if name not in part and any(part.values())
        ]
        if lacking:  # a rank without samples may leave it out
            raise UsageError(
                f"metric {label}: rank {', '.join(map(str, giving))} passed {name}, but rank "
                f"{', '.join(map(str, lacking))} did not"
                f"\ntip: pass {name} on every rank with samples"
            )
    positions = columns.pop(POSITIONS, None)
    if missing := [name for name in names if name not in columns]:
        raise UsageError(f"metric {label}: no rank passed {', '.join(missing)}")
    if positions is not None:
        places = np.asarray(positions)
        if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
            raise UsageError(f"metric {label}: positions must be one whole number for each sample")
        if places.min(initial=0) < 0:
            raise UsageError(
                f"metric {label}: positions contains {places.min()}, but positions begin at 0"
            )
        _, chosen = np.unique(places, return_index=True)
        columns = {name: [column[row] for row in chosen] for name, column in columns.items()}
    try:
        with rng.preserved():  # the other ranks draw no random numbers here
            result = module.compute(**columns, **arguments)
    except Exception as error:
        line = text_of(error).strip().partition("\n")[0]
        raise MusterError(f"metric {label}: {type(error).__name__}: {line}") from error
    if not isinstance(result, dict):
        kind = "None" if result is None else f"an object of type {type(result).__name__}"
        raise MusterError(f"metric {label}: expected a dict of results, but it returned {kind}")
    return result


def _as_list(values: Any) -> list[Any]:
    """Return a tensor, an array, or anything with one entry per sample, as a list.

    Raises:
        UsageError: it is a single value.
    """
    entries = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    if not isinstance(entries, Iterable) or isinstance(entries, str | bytes | Mapping):
        raise UsageError(
            f"a metric needs a list with one entry per sample, but got {type(values).__name__}"
        )
    return list(entries)


def _load(metric: Any, config_name: str | None) -> Any:
    """Return the module that computes `metric`; `evaluate.combine` joins several into one."""
    from evaluate import CombinedEvaluations, EvaluationModule, combine

    def load_module(module: Any) -> Any:
        return load(module, config_name) if isinstance(module, str) else module

    if isinstance(metric, Mapping):
        return combine({name: load_module(module) for name, module in metric.items()})
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        return combine(list(map(load_module, metric)))
    module = load_module(metric)
    if not isinstance(module, CombinedEvaluations | EvaluationModule):
        kind = type(module).__name__
        raise UsageError(f"a metric must be a file, a name, or an evaluate module, but got {kind}")
    return module
