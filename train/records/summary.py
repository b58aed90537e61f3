"""A run on one page: `summary.json`, and the small table printed at its end."""

from collections.abc import Mapping
from typing import Any

from .schema import PHASES
from .sinks import History


def summarise(settings: Mapping[str, Any], history: History, steps: int) -> dict[str, Any]:
    """Return `settings` and rank 0's results; the last metrics keep their names (`accuracy`, ...).

    `steps` includes the steps before a resumed run's start; only steps since then are timed.

    `epoch_s` is the time for all of `train_samples` at the rate of the timed steps.
    """
    evaluations = history.evaluations
    summary: dict[str, Any] = {
        **settings,
        "steps": steps,
        "first_losses": list(history.first_losses),
        "last_batch_loss": history.last_loss,
        "evaluations": [
            {"epoch": evaluation.epoch, "step": evaluation.step, **evaluation.metrics}
            for evaluation in evaluations
        ],
        **(evaluations[-1].metrics if evaluations else {}),
        "total_s": history.total_s,
    }
    if history.count > 1:  # the first step is not timed, here as in a report
        timed_steps = history.count - 1
        means = {name: taken / timed_steps for name, taken in history.sums.items()}
        summary |= {
            "timed_steps": timed_steps,
            "samples_per_s": means.pop("samples") / means["step_s"],
            "payload_bytes_per_step": means.pop("payload_bytes"),  # local_sgd: 0 in most steps
            **means,
        }
        if "train_samples" in settings:
            summary["epoch_s"] = settings["train_samples"] / summary["samples_per_s"]
    return summary


def rows(summary: dict[str, Any], run_dir: str) -> list[tuple[str, str]]:
    """The summary as names and values for the console."""
    table = []
    if "step_s" in summary:
        step_s = summary["step_s"]
        steps = summary["timed_steps"]
        shares = "  ".join(f"{name} {summary[f'{name}_s'] / step_s:.0%}" for name in PHASES)
        table += [
            ("seconds per iteration", f"{step_s:.4f}  (mean of {steps} steps, without the first)"),
            ("time by phase", shares),
            ("samples per second", f"{summary['samples_per_s']:.1f}"),
        ]
    if summary["evaluations"]:
        last = summary["evaluations"][-1]
        scores = "  ".join(f"{k} {v:.4f}" for k, v in last.items() if k not in ("epoch", "step"))
        table.append(("last evaluation", scores))
    return [*table, ("run folder", run_dir)]
