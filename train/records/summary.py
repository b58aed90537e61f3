"""A run in a page: `summary.json`, and the small table a person sees at its end."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .schema import EvalRecord, StepRecord

FIRST_LOSSES = 5  # printed one by one, as the courses ask
RECENT_STEPS = 1000  # that --split auto looks at, at most
PHASES = ("data", "forward", "backward", "sync", "optimizer")
TIMED = ("step_s", "samples", *(f"{phase}_s" for phase in PHASES))


class Totals:
    """The steps of a run added up, so that memory does not grow with them; records have each.

    Times leave out the first step, which also pays for what happens only once.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.last: StepRecord | None = None
        self._sums = dict.fromkeys(TIMED, 0.0)  # over the steps but the first

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        if self.steps == 1:  # until now the first one stood in for them
            self._sums = dict.fromkeys(TIMED, 0.0)
        for name in TIMED:
            self._sums[name] += getattr(record, name)
        self.steps, self.last = self.steps + 1, record

    @property
    def timed_steps(self) -> int:
        """How many the means are over."""
        return max(self.steps - 1, min(self.steps, 1))

    def mean(self, name: str) -> float:
        """The mean of one of `TIMED`; there must have been a step."""
        return self._sums[name] / self.timed_steps


@dataclass
class History:
    """What a finished run is summed up from, on every rank alike."""

    first_losses: list[float] = field(default_factory=list)
    totals: Totals = field(default_factory=Totals)
    # the latest only: memory must not grow with steps, and the records on disk have all
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    evaluations: list[EvalRecord] = field(default_factory=list)

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        self.totals.add(record)
        self.steps.append(record)
        if record.step <= FIRST_LOSSES:
            self.first_losses.append(record.loss)


def summarise(settings: Mapping[str, Any], history: History) -> dict[str, Any]:
    """`settings`, and what rank 0 saw; the last metrics have their own names (`accuracy`, ...)."""
    totals, evaluations = history.totals, history.evaluations
    last = totals.last
    summary: dict[str, Any] = {
        **settings,
        "steps": totals.steps,
        "first_losses": list(history.first_losses),
        "final_loss": last.loss if last is not None else None,
        "evaluations": [
            {"epoch": one.epoch, "step": one.step, **one.metrics} for one in evaluations
        ],
        **(evaluations[-1].metrics if evaluations else {}),
    }
    if last is not None:
        step_s = totals.mean("step_s")
        summary |= {
            "timed_steps": totals.timed_steps,
            "step_s": step_s,
            "samples_per_s": totals.mean("samples") / step_s,
            "payload_bytes_per_step": last.payload_bytes,
        }
        for phase in PHASES:
            summary[f"{phase}_s"] = totals.mean(f"{phase}_s")
    return summary


def rows(summary: dict[str, Any], run_dir: str) -> list[tuple[str, str]]:
    """The summary as names and values for the console."""
    table = []
    if "step_s" in summary:
        step_s = summary["step_s"]
        shares = "  ".join(f"{name} {summary[f'{name}_s'] / step_s:.0%}" for name in PHASES)
        table += [
            (
                "seconds per iteration",
                f"{step_s:.4f}  (mean of {summary['timed_steps']}, first left out)",
            ),
            ("share of it", shares),
            ("samples per second", f"{summary['samples_per_s']:.1f}"),
        ]
    if summary["evaluations"]:
        last = summary["evaluations"][-1]
        scores = "  ".join(f"{k} {v:.4f}" for k, v in last.items() if k not in ("epoch", "step"))
        table.append(("last evaluation", scores))
    return [*table, ("run folder", run_dir)]
