"""A run on one page: `summary.json`, and the small table printed at its end."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .schema import EvalRecord, StepRecord

FIRST_LOSSES = 5  # printed one by one, as in the courses
RECENT_STEPS = 1000  # the most that --split auto uses
PHASES = ("data", "forward", "backward", "sync", "optimizer")
TIMED = ("step_s", "samples", *(f"{phase}_s" for phase in PHASES))


@dataclass
class History:
    """The data for the summary of a run, the same on every rank.

    Steps are added up, so that memory does not grow with them; each is in the records on disk. The
    first step includes one-time costs: it is not in the sums once there are other steps.
    """

    first_losses: list[float] = field(default_factory=list)
    count: int = 0  # of steps
    sums: dict[str, float] = field(default_factory=dict)  # of `TIMED`
    steps: deque[StepRecord] = field(default_factory=lambda: deque(maxlen=RECENT_STEPS))
    evaluations: list[EvalRecord] = field(default_factory=list)
    total_s: float = 0.0  # of steps, evaluations and checkpoints, since this start

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        before = self.sums if self.count > 1 else {}  # until then the sums hold the first step
        self.sums = {name: before.get(name, 0.0) + getattr(record, name) for name in TIMED}
        self.count += 1
        self.steps.append(record)
        if record.step <= FIRST_LOSSES:
            self.first_losses.append(record.loss)


def summarise(settings: Mapping[str, Any], history: History) -> dict[str, Any]:
    """`settings`, and rank 0's results; the last metrics have their own names (`accuracy`, ...).

    `epoch_s` is the time for all of `train_samples` at the rate of the timed steps.
    """
    evaluations, last = history.evaluations, history.steps[-1] if history.steps else None
    summary: dict[str, Any] = {
        **settings,
        "steps": history.count,
        "first_losses": list(history.first_losses),
        "final_loss": last.loss if last is not None else None,
        "evaluations": [
            {"epoch": one.epoch, "step": one.step, **one.metrics} for one in evaluations
        ],
        **(evaluations[-1].metrics if evaluations else {}),
        "total_s": history.total_s,
    }
    if last is not None:
        timed_steps = max(history.count - 1, 1)
        means = {name: taken / timed_steps for name, taken in history.sums.items()}
        summary |= {
            "timed_steps": timed_steps,
            "samples_per_s": means.pop("samples") / means["step_s"],
            "payload_bytes_per_step": last.payload_bytes,
            **means,
        }
        if "train_samples" in settings:
            summary["epoch_s"] = settings["train_samples"] / summary["samples_per_s"]
    return summary


def rows(summary: dict[str, Any], run_dir: str) -> list[tuple[str, str]]:
    """The summary as names and values for the console."""
    table = []
    if "step_s" in summary:
        step_s, steps = summary["step_s"], summary["timed_steps"]
        shares = "  ".join(f"{name} {summary[f'{name}_s'] / step_s:.0%}" for name in PHASES)
        table += [
            ("seconds per iteration", f"{step_s:.4f}  (mean of {steps}, first left out)"),
            ("share of it", shares),
            ("samples per second", f"{summary['samples_per_s']:.1f}"),
        ]
    if summary["evaluations"]:
        last = summary["evaluations"][-1]
        scores = "  ".join(f"{k} {v:.4f}" for k, v in last.items() if k not in ("epoch", "step"))
        table.append(("last evaluation", scores))
    return [*table, ("run folder", run_dir)]
