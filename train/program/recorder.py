"""The records of any program, which reports, comparisons and the cost model read."""

import math
import os
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.arguments import methods, number, whole_number
from muster.errors import UsageError, refuse

from ..batches.plan import StepPlan
from ..checkpoints.manager import StepRequests
from ..records.schema import EvalRecord, Record
from ..records.sinks import Sinks
from ..sync.ddp import reducer
from ..sync.ddp.data_parallel import SyncedDataParallel
from ..sync.ranks import Collective, Ranks, current_ranks
from ..sync.step_times import StepTimer, timer_of

if TYPE_CHECKING:
    from .saved_objects import Checkpoints

ALIKE_STEPS = 3  # in which equal losses on all ranks are no chance

# The checkpoints whose `after_step` was called last, if they still exist. Their requests to other
# ranks are sent with the loss, so that a step has one small collective. Python's collector may have
# taken them on some ranks only, so what is sent must have the same size with and without them.
last_asked: "weakref.WeakValueDictionary[str, Checkpoints]" = weakref.WeakValueDictionary()


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
    """Record a step, or an evaluation, in the run folder; every rank calls this alike.

    A step has a `loss`. One small collective computes the mean over the ranks' losses, which is
    recorded and returned. An evaluation has `metrics`, the same on every rank: where ranks record
    different numbers, a report shows their mean and says so. NaN and infinity are recorded as null.

        >>> with muster.init(device="cpu"):
        ...     muster.record(1, loss=0.5)  # the mean over ranks
        0.5

    Args:
        step: a step of `muster.steps`, which knows its samples and epoch; or its number, from 1; by
            default one more than the last.
        loss: this rank's loss: with `muster.steps` the sum of its micro-batches' weighted losses.
            Ranks whose losses are equal in each of the first steps are named in a warning: they may
            compute the same samples.
        metrics: by name, such as {"accuracy": 0.71}.
        model: what `muster.sync` or DDP returned: then bytes of each step and seconds of its phases
            are recorded, too, except for the first. What a step waits for other ranks is `sync_s`.
        samples: number in the step, over all ranks, if `step` does not have it.
        lr: the learning rate of the step.
        grad_norm: norm of the gradient, before clipping.

    Raises:
        UsageError: neither a loss nor metrics, an invalid argument, or no run folder (no launcher,
            no `muster.init`).
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
    if metrics is not None:
        recorder.evaluated(step, metrics)
        return None
    own = {name: _number(one) for name, one in {"loss": loss, **numbers}.items()}
    return recorder.stepped(step, int(samples), model, **own)


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
    """Write another kind of record, if there is a run folder."""
    run_dir = os.environ.get("MUSTER_RUN_DIR")
    if run_dir is not None:
        _recorder(Path(run_dir), current_ranks()).sinks.write(record)


class Recorder:
    """Writes this rank's records into `run_dir`."""

    def __init__(self, run_dir: Path, ranks: Ranks) -> None:
        self._ranks, self.sinks = ranks, Sinks(run_dir, ranks.rank)
        self._step, self._epoch = 0, 1
        self._alike = 0  # steps so far in which all ranks had the same loss; -1: not looked at
        self._untimed = StepTimer()  # of steps without a model
        self._timer = self._untimed  # of the last step
        self._ended_s = time.perf_counter()  # that step, or an evaluation

    def stepped(
        self, step: StepPlan | int | None, samples: int, model: nn.Module | None, loss: float,
        **numbers: float,
    ) -> float:  # fmt: skip
        plan = self._counted(step, samples)
        self._timer = self._untimed if model is None else timer_of(model)
        asking = last_asked.get("checkpoints")
        requests = StepRequests() if asking is None else asking.requests(plan.step)
        own = torch.tensor(loss, dtype=torch.float64, device=self._ranks.device)
        losses, asked = self._ranks.exchange(own, torch.tensor(requests))
        every = losses.flatten().tolist()
        mean = math.fsum(every) / len(every)
        self._compare(every)
        if asking is not None:
            asking.answered(plan.step, asked)
        seconds = self._timer.end_step().seconds()
        made = []
        if model is None:
            seconds["optimizer"] = 0.0  # only what was waited is known
        else:
            made = sent_by(model)
        record = plan.record(self._ranks.rank, made, seconds, loss=mean, **numbers)
        if not plan.micro_batches:  # step is a number: assume equal parts
            record = replace(record, local_samples=samples // self._ranks.world_size)
        self.sinks.stepped(record, made)
        self._begin()
        return mean

    def _compare(self, losses: Sequence[float]) -> None:
        """Say if all ranks' losses are the same numbers in each of the first steps."""
        if len(set(losses)) > 1 or len(losses) == 1:
            self._alike = -1  # never again
        if self._alike < 0:
            return
        self._alike += 1
        if self._alike == ALIKE_STEPS:
            self._alike = -1
            if self._ranks.rank == 0:
                warnings.warn(
                    f"muster.record: in {ALIKE_STEPS} steps all {len(losses)} ranks had the same "
                    f"loss, last {losses[0]}: do they compute the same samples? Give each rank its "
                    "own, by muster.steps or a DistributedSampler, and record its own loss",
                    stacklevel=4,
                )

    def evaluated(self, step: StepPlan | int | None, metrics: Mapping[str, float]) -> None:
        if step is not None:
            self._counted(step)
        record = EvalRecord(
            step=self._step, epoch=self._epoch, rank=self._ranks.rank, samples=0, local_samples=0,
            eval_s=time.perf_counter() - self._ended_s,
            metrics={name: float(one) for name, one in metrics.items()},
        )  # fmt: skip
        self.sinks.write(record)
        self._begin()

    def _begin(self) -> None:
        """The next step begins when this one, or an evaluation, is recorded."""
        self._timer.begin()
        self._ended_s = time.perf_counter()

    def _counted(self, step: StepPlan | int | None, samples: int = 0) -> StepPlan:
        if not isinstance(step, StepPlan):
            number = self._step + 1 if step is None else int(step)
            step = StepPlan(samples, (), number, self._epoch - 1)
        self._step, self._epoch = step.step, step.epoch + 1
        return step


def sent_by(model: nn.Module) -> list[Collective]:
    """The collectives on gradients of the last pass of a model from `muster.sync`."""
    if isinstance(model, SyncedDataParallel):
        return model.hook.ranks.ledger.take_step()
    if isinstance(model, DistributedDataParallel) and model.process_group.size() > 1:
        return reducer.collectives(model)
    return []


@lru_cache(maxsize=1)
def _recorder(run_dir: Path, ranks: Ranks) -> Recorder:
    return Recorder(run_dir, ranks)
