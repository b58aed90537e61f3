"""The records of anyone's program: what reports, comparisons and the cost model read."""

import os
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from muster.arguments import methods, number, whole_number
from muster.errors import UsageError, refuse

from ..batches.plan import StepPlan
from ..records.schema import EvalRecord, Record, StepRecord
from ..records.sinks import Sinks
from ..sync.ddp.torch_ddp import sent_by
from ..sync.pass_times import timer_of
from ..sync.ranks import Ranks, current_ranks


def record(
    step: StepPlan | int | None = None,
    *,
    loss: Tensor | float | None = None,
    metrics: Mapping[str, float] | None = None,
    model: nn.Module | None = None,
    samples: int = 0,
    lr: Tensor | float = 0.0,
    grad_norm: Tensor | float = 0.0,
) -> float | None:
    """Write down a step, or an evaluation, in the run folder; every rank calls this alike.

    A step has a `loss`: the mean over ranks of what they hand in, computed here with one small
    collective, is recorded and returned. An evaluation has `metrics`, the same on every rank.

    Args:
        step: of `muster.steps`, which knows samples and epoch; or its number, from 1; by default
            one more than the last.
        loss: this rank's: with `muster.steps` the sum of its micro-batches' weighted losses.
        metrics: by name, such as {"accuracy": 0.71}.
        model: what `muster.sync` returned: seconds and bytes of the steps after the first.
        samples: of the step, over all ranks, where `step` does not know them.
        lr: the learning rate of the step.
        grad_norm: of the gradient, before it was clipped.

    Raises:
        UsageError: neither a loss nor metrics, an argument that is not what it must be, or no run
            folder: no launcher, no `muster.init`.
    """
    run_dir = os.environ.get("MUSTER_RUN_DIR")
    if run_dir is None:
        raise UsageError(
            "muster.record: MUSTER_RUN_DIR, the run folder, is not set; call muster.init() "
            "first, or start the program with one of Muster's launchers"
        )
    if (loss is None) == (metrics is None):
        raise UsageError("muster.record: give either loss=... or metrics={...}")
    numbers: dict[str, Any] = {"lr": lr, "grad_norm": grad_norm}
    refuse(_problems(step, loss, metrics, model, samples, numbers), where="muster.record: ")
    recorder = _recorder(Path(run_dir), current_ranks())
    if loss is None:
        assert metrics is not None
        recorder.evaluated(step, metrics)
        return None
    return recorder.stepped(
        step, _number(loss), model, int(samples), _number(lr), _number(grad_norm)
    )


def _problems(
    step: object, loss: Any, metrics: Any, model: object, samples: object, numbers: dict[str, Any]
) -> Iterator[str]:
    if step is not None and not isinstance(step, StepPlan):
        yield from whole_number("step", step, 0)
    yield from whole_number("samples", samples, 0)
    if model is not None:
        yield from methods("model", model, "parameters")
    if metrics is None:
        numbers = {"loss": loss, **numbers}
    elif isinstance(metrics, Mapping):
        numbers = {**numbers, **{f"metrics[{name!r}]": one for name, one in metrics.items()}}
    else:
        yield f"metrics is a {type(metrics).__name__}; give a dict: metrics={{'accuracy': 0.71}}"
    for name, value in numbers.items():
        yield from number(name, value)


def _number(value: Tensor | float) -> float:
    return value.item() if isinstance(value, Tensor) else float(value)


def write_record(record: Record) -> None:
    """Write down what else happened, where there is a run folder."""
    run_dir = os.environ.get("MUSTER_RUN_DIR")
    if run_dir is not None:
        _recorder(Path(run_dir), current_ranks()).write(record)


class Recorder:
    """Writes this rank's records into `run_dir`."""

    def __init__(self, run_dir: Path, ranks: Ranks) -> None:
        self._ranks, self._sinks = ranks, Sinks(run_dir, ranks.rank)
        self._step, self._epoch = 0, 1
        self._ended: float | None = None  # the last step; the first one's begin is not known

    def stepped(
        self,
        step: StepPlan | int | None,
        loss: float,
        model: nn.Module | None,
        samples: int,
        lr: float,
        grad_norm: float,
    ) -> float:
        plan = step if isinstance(step, StepPlan) else None
        self._count(step)
        now = time.perf_counter()
        rows = self._ranks.all_gather(
            torch.tensor([loss], dtype=torch.float64, device=self._ranks.device)
        )
        mean = float(rows.mean())
        measured = timer_of(model).take() if model is not None else None
        made = [] if model is None else sent_by(model)
        begun = (measured.began if measured else None) or now
        before = begun if self._ended is None else self._ended
        record = StepRecord(
            step=self._step, epoch=self._epoch, rank=self._ranks.rank, loss=mean,
            samples=plan.samples if plan else samples,
            local_samples=plan.local_samples if plan else samples // self._ranks.world_size,
            local_tokens=plan.local_tokens if plan else 0,
            data_s=max(0.0, begun - before) if measured else 0.0,
            forward_s=measured.forward_s if measured else 0.0,
            backward_s=measured.backward_s if measured else 0.0,
            sync_s=measured.sync_s if measured else 0.0,
            optimizer_s=now - (measured.ended or now) if measured else 0.0,
            step_s=now - before, lr=lr, grad_norm=grad_norm,
            payload_bytes=sum(one.nbytes for one in made),
        )  # fmt: skip
        self.write(record)
        self._sinks.collectives(record, made)
        self._ended = time.perf_counter()
        return mean

    def evaluated(self, step: StepPlan | int | None, metrics: Mapping[str, float]) -> None:
        if step is not None:
            self._count(step)
        now = time.perf_counter()
        record = EvalRecord(
            step=self._step, epoch=self._epoch, rank=self._ranks.rank, samples=0, local_samples=0,
            eval_s=now - (self._ended or now),
            metrics={name: float(one) for name, one in metrics.items()},
        )  # fmt: skip
        self.write(record)
        self._ended = now

    def write(self, record: Record) -> None:
        self._sinks.write(record)

    def _count(self, step: StepPlan | int | None) -> None:
        if isinstance(step, StepPlan):
            self._step, self._epoch = step.step, step.epoch + 1
        else:
            self._step = self._step + 1 if step is None else int(step)


@lru_cache(maxsize=1)
def _recorder(run_dir: Path, ranks: Ranks) -> Recorder:
    return Recorder(run_dir, ranks)
