"""`--metrics`: metrics of `evaluate` in addition to a task's own, for each evaluation set."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from torch import Tensor

from muster.errors import UsageError

from ..distributed.agreement import broadcast_result
from ..sync.ranks import Ranks
from .evaluate_metrics import POSITIONS, evaluate
from .metric_modules import load

COLUMNS = ("predictions", "references")


class MetricChoice(NamedTuple):
    """One of `--metrics`: `f1`, `./my_metric.py`, `glue:mrpc`, `f1:average=macro`."""

    name: str
    config_name: str | None
    arguments: Mapping[str, Any]


class Predictions:
    """This rank's predictions and references of one evaluation set, batch after batch."""

    def __init__(self) -> None:
        self.columns: dict[str, Any] = {name: [] for name in (*COLUMNS, POSITIONS)}

    def add(self, *parts: Tensor | Sequence[Any]) -> None:
        """Add n samples: one prediction and one reference each, and their positions in the set."""
        for part, column in zip(parts, self.columns.values(), strict=True):
            column += part.tolist() if isinstance(part, Tensor) else part


class TaskMetrics:
    """The modules of `--metrics`, loaded once, on rank 0. Every rank must create it.

    Raises:
        UsageError: a module cannot be found or loaded, or needs input that the task does not have
            (on ranks other than 0: PeerFailed).
    """

    def __init__(self, text: str, ranks: Ranks) -> None:
        self._modules = list[Any]()  # only on rank 0
        self._reported = set[str]()
        self.messages: list[str] = []  # each to be printed once
        self._names = broadcast_result(ranks.rank, ranks.world_size, lambda: self._load(text))

    def compute(self, samples: Predictions, taken: Mapping[str, float]) -> dict[str, float]:
        """Return the numbers in the results on all ranks' samples; every rank must call it.

        Names are the same as with `evaluate.combine`. If the task already has a metric of that
        name, which is in `taken`, the module's name is prefixed. A result within a result is named
        after both: `LOC_f1`.

        Raises:
            MusterError: a module failed.
        """
        modules = self._modules or self._names
        results = [
            evaluate(module, **samples.columns, **arguments)
            for module, (_, arguments) in zip(modules, self._names, strict=True)
        ]
        keys = Counter(key for result in results for key in result) + Counter(list(taken))
        numbers = dict[str, float]()
        for (name, _), result in zip(self._names, results, strict=True):
            for key, value in result.items():
                numbers.update(self._numbers(f"{name}_{key}" if keys[key] > 1 else key, value))
        return numbers

    def _load(self, text: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return a unique label for each module, and the arguments of its `compute`.

        Modules with the same name get a number after it, as with `evaluate.combine`.
        """
        wanted = parse_metrics(text)
        for metric in wanted:
            module = load(metric.name, metric.config_name)
            if other := [name for name in module._feature_names() if name not in COLUMNS]:
                raise UsageError(
                    f"--metrics {metric.name}: it needs {', '.join(other)}, but a task has only "
                    f"{' and '.join(COLUMNS)}"
                )
            self._modules.append(module)
        names = [module.name for module in self._modules]
        labels = [
            f"{name}_{names[:index].count(name)}" if names.count(name) > 1 else name
            for index, name in enumerate(names)
        ]
        return [(label, metric.arguments) for label, metric in zip(labels, wanted, strict=True)]

    def _numbers(self, name: str, value: Any) -> Iterator[tuple[str, float]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._numbers(f"{name}_{key}", inner)
        elif isinstance(value, Real):
            yield name, float(value)
        elif name not in self._reported:
            self._reported.add(name)
            self.messages.append(f"metrics: {name} is not a number and is left out of the records")


def parse_metrics(text: str) -> list[MetricChoice]:
    """Parse `--metrics`: names separated by commas, each with arguments after colons.

    A word after a colon is the name of a configuration, and `average=macro` an argument of
    `compute`; its value is JSON, or else a string.

    Raises:
        UsageError: a name is empty, or there are two configurations.
    """
    metrics = []
    for part in text.split(","):
        name, *words = part.strip().split(":")
        configs = [word for word in words if "=" not in word]
        if not name or len(configs) > 1 or not all(words):
            raise UsageError(
                f"--metrics {text}: {part.strip()!r}: expected NAME, NAME:CONFIGURATION or "
                "NAME:argument=value"
            )
        pairs = [word.partition("=")[::2] for word in words if "=" in word]
        arguments = {key: _value(value) for key, value in pairs}
        metrics.append(MetricChoice(name, configs[0] if configs else None, arguments))
    return metrics


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
