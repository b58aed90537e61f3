"""A run in a page: `summary.json`, and the small table a person sees at its end."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from configs.schema import TrainConfig
from train.measure.records import EvalRecord, StepRecord

PHASES = ("data", "forward", "backward", "sync", "optimizer")


def summarise(
    config: TrainConfig,
    world_size: int,
    first_losses: Sequence[float],
    steps: Sequence[StepRecord],
    evaluations: Sequence[EvalRecord],
) -> dict[str, Any]:
    """What rank 0 saw; the last metrics stand under their own names (`accuracy`, ...).

    Times leave out the first step, which also pays for what happens only once.
    """
    timed = steps[1:] or steps
    summary: dict[str, Any] = {
        "task": config.task,
        "sync": config.sync,
        "world_size": world_size,
        "batch_size": config.batch_size,
        "split": config.split,
        "precision": config.precision,
        "seed": config.seed,
        "steps": len(steps),
        "first_losses": list(first_losses),
        "final_loss": steps[-1].loss if steps else None,
        "evaluations": [
            {"epoch": one.epoch, "step": one.step, **one.metrics} for one in evaluations
        ],
        **(evaluations[-1].metrics if evaluations else {}),
    }
    if timed:
        step_s = fmean(record.step_s for record in timed)
        summary |= {
            "timed_steps": len(timed),
            "step_s": step_s,
            "samples_per_s": fmean(record.samples for record in timed) / step_s,
            "payload_bytes_per_step": steps[-1].payload_bytes,
        }
        for phase in PHASES:
            summary[f"{phase}_s"] = fmean(getattr(record, f"{phase}_s") for record in timed)
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
