"""The records of any program, which reports and comparisons read."""

import math
import os
import weakref
from collections.abc import Iterator, Mapping
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
from ..sync.ddp.data_parallel import SyncedDataParallel
from ..sync.ddp.torch_ddp import buckets_of
from ..sync.pass_times import PassTimes, timer_of
from ..sync.ranks import Collective, Moment, Ranks, current_ranks, waits

if TYPE_CHECKING:
    from .saved_objects import Checkpoints


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
        # the end of the last step; when the first one began is not known
        self._ended: Moment | None = None

    def stepped(
        self, step: StepPlan | int | None, samples: int, model: nn.Module | None, loss: float,
        **numbers: float,
    ) -> float:  # fmt: skip
        plan = self._counted(step, samples)
        computed = waits.now()
        asking = last_asked.get("checkpoints")
        requests = StepRequests() if asking is None else asking.requests(plan.step)
        own = torch.tensor(loss, dtype=torch.float64, device=self._ranks.device)
        losses, asked = self._ranks.exchange(own, torch.tensor(requests))
        mean = math.fsum(losses.flatten().tolist()) / len(losses)
        if asking is not None:
            asking.answered(plan.step, asked)
        taken, made = (
            (PassTimes(), []) if model is None else (timer_of(model).take(), sent_by(model))
        )
        now = waits.now()
        before = self._ended or taken.began or computed
        seconds = {
            "data": max(0.0, before.computed_until(taken.began or before)),
            "forward": taken.forward_s, "backward": taken.backward_s,
            "sync": before.waited_until(now),
            "sync_in_passes": before.waited_until(computed),
            "optimizer": (taken.ended or computed).computed_until(computed),
            "step": now.at_s - before.at_s,
        }  # fmt: skip
        record = plan.record(self._ranks.rank, made, seconds, loss=mean, **numbers)
        if not plan.micro_batches:  # step is a number: assume equal parts
            record = replace(record, local_samples=samples // self._ranks.world_size)
        self.sinks.stepped(record, made)
        self._ended = waits.now()
        return mean

    def evaluated(self, step: StepPlan | int | None, metrics: Mapping[str, float]) -> None:
        if step is not None:
            self._counted(step)
        now = waits.now()
        record = EvalRecord(
            step=self._step, epoch=self._epoch, rank=self._ranks.rank, samples=0, local_samples=0,
            eval_s=now.at_s - (self._ended or now).at_s,
            metrics={name: float(one) for name, one in metrics.items()},
        )  # fmt: skip
        self.sinks.write(record)
        self._ended = now

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
        return buckets_of(model, model._get_ddp_logging_data())
    return []


@lru_cache(maxsize=1)
def _recorder(run_dir: Path, ranks: Ranks) -> Recorder:
    return Recorder(run_dir, ranks)
