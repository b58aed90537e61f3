"""Any metric of `evaluate` on any number of ranks, equal to that of a single process.

The samples of all ranks come together on rank 0 once, in their order. The module itself computes
there, in memory, while the others wait; all get what it returns. No file is shared, and no lock is
taken. Only rank 0 needs the module.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, TypeVar, cast

import numpy as np
import torch

from muster.errors import MusterError, UsageError, text_of

from ..distributed.exit_guard import PeerFailed
from ..sync.ranks import current_ranks
from .gathering import Exchange
from .metric_modules import ModuleFolder, feature_names, in_memory
from .sample_columns import from_plain, in_order, to_plain

POSITIONS = "positions"
T = TypeVar("T")


def evaluate(
    metric: Any,
    *,
    predictions: Any = None,
    references: Any = None,
    positions: Any = None,
    config_name: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a metric of `evaluate` says of the samples of all ranks, on every rank.

    Every rank of torch's default group calls it, with its own samples: any number of them, also
    none. A process without a group is alone.

    Args:
        metric: a file (`./my_metric.py`), a name (`f1`), a loaded module, or several of them in a
            list, or in a dict by the names that their results get in front where two are alike.
            Only rank 0's counts.
        predictions: one entry per sample of this rank, (n, ...): a tensor, an array or a list.
        references: likewise.
        positions: whole numbers (n,), each sample's place in the whole set. The metric gets the
            samples in that order, and of each place one, so that what a sampler has handed out
            twice counts once. Without them the order is that of the ranks.
        config_name: of the module, such as `mrpc` of `glue`.
        more: further columns that the module takes, and arguments of its `compute`.

    Raises:
        UsageError: there is no such metric, or the samples do not fit it (on every rank).
        MusterError: it failed; the message has its words (on every rank).
    """
    exchange = Exchange(current_ranks())
    columns = {"predictions": predictions, "references": references}
    with ExitStack() as cleanup:
        loaded = list[Any]()

        def load() -> list[str]:
            folder = ModuleFolder()
            cleanup.callback(folder.close)
            modules, whole = _loaded(metric, config_name, folder)
            for module in modules:
                cleanup.enter_context(in_memory(module))
            loaded.append(whole)
            return feature_names(modules)

        names = at_first(exchange, load)
        own = {name: columns[name] if name in columns else more.get(name) for name in names}
        arguments = {name: value for name, value in more.items() if name not in names}
        together = exchange.columns({**own, POSITIONS: positions})

        def compute() -> Any:
            return to_plain(computed(loaded[0], together, names, arguments))

        found = from_plain(at_first(exchange, compute))
    return dict(found)


def at_first(exchange: Exchange, act: Callable[[], T]) -> T:
    """What `act` returns on rank 0, on every rank, or the error that it raises.

    Raises:
        MusterError: `act` failed; on other ranks as PeerFailed.
    """
    outcome, failure = dict[str, Any](), cast(Exception | None, None)
    if exchange.ranks.rank == 0:
        try:
            outcome = {"answer": act()}
        except Exception as error:  # noqa: BLE001  whatever it is: the others wait for it
            is_own = isinstance(error, MusterError)
            text = text_of(error) if is_own else f"{type(error).__name__}: {text_of(error)}"
            outcome, failure = {"failure": text}, error
    outcome = json.loads(exchange.of_first(json.dumps(outcome)))
    if failure is not None:
        raise failure
    if "failure" in outcome:
        raise PeerFailed(f"rank 0 could not go on: {outcome['failure']}")
    answer: T = outcome["answer"]
    return answer


def computed(
    module: Any, columns: Mapping[str, Any], names: Iterable[str], arguments: Mapping[str, Any]
) -> Any:
    """The module's result on `columns`, in the order of the positions if there are any.

    Raises:
        UsageError: a column is missing, or positions are not whole numbers.
        MusterError: the module raised something, or returned what is no dict of plain values.
    """
    label = getattr(module, "name", "") or ", ".join(module.evaluation_module_names)
    given = dict(columns)
    positions = given.pop(POSITIONS, None)
    if missing := [name for name in names if name not in given]:
        raise UsageError(f"metric {label}: no rank gave {', '.join(missing)}")
    if positions is not None:
        places = np.asarray(positions)
        if places.ndim != 1 or (len(places) and places.dtype.kind not in "iu"):
            raise UsageError(f"metric {label}: positions are one whole number for each sample")
        _, chosen = np.unique(places, return_index=True)
        given = {name: in_order(column, chosen) for name, column in given.items()}
    try:
        with torch.random.fork_rng(devices=[]):  # the other ranks draw nothing here
            found = module.compute(**given, **arguments)
    except Exception as error:
        line = text_of(error).strip().partition("\n")[0]
        raise MusterError(f"metric {label}: {type(error).__name__}: {line}") from error
    if not isinstance(found, Mapping):
        kind = "None" if found is None else f"a {type(found).__name__}"
        raise MusterError(f"metric {label}: it returned {kind}, not a dict of its results")
    try:
        to_plain(found)
    except TypeError as error:
        raise MusterError(f"metric {label}: of its result, {error}") from None
    return found


def _loaded(metric: Any, config_name: str | None, folder: ModuleFolder) -> tuple[list[Any], Any]:
    """The modules that `metric` stands for, and the one that computes them all."""
    from evaluate import CombinedEvaluations, EvaluationModule, combine

    def load(one: Any) -> Any:
        return folder.load(one, config_name) if isinstance(one, str) else one

    if isinstance(metric, CombinedEvaluations):
        return list(metric.evaluation_modules), metric
    if isinstance(metric, Mapping):
        named = {name: load(one) for name, one in metric.items()}
        return list(named.values()), combine(named)
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        modules = [load(one) for one in metric]
        return modules, combine(modules)
    module = load(metric)
    if not isinstance(module, EvaluationModule):
        raise UsageError(
            f"a metric is a file, a name, or a module of evaluate, not a {type(module).__name__}"
        )
    return [module], module
