"""The records of any program, which reports and comparisons read."""

import os
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from muster.arguments import methods, number, one_of, whole_number
from muster.errors import UsageError, refuse

from ..batches.plan import StepPlan
from ..records.schema import EvalRecord, Record, StepRecord
from ..records.sinks import TRACKERS, Sinks
from ..sync.ddp import reducer
from ..sync.ddp.data_parallel import SyncedDataParallel
from ..sync.ranks import Collective, Ranks, current_ranks
from ..sync.step_times import StepTimer, StepTimes, timer_of
from .exchange import program_requests

EQUAL_STEPS = 3  # if all ranks' losses are equal in this many, it is no coincidence


def record(
    step: StepPlan | int | None = None,
    *,
    loss: Tensor | float | None = None,
    metrics: Mapping[str, float] | None = None,
    model: nn.Module | None = None,
    samples: int = 0,
    lr: Tensor | float = 0.0,
    grad_norm: Tensor | float = 0.0,
    log_with: str | Sequence[str] = (),
) -> float | None:
    """Record a step, or an evaluation, in the run folder; every rank must call this the same way.

    A step has a `loss`. One small collective computes the mean over the ranks' losses, which is
    recorded and returned. The host waits for the device if a number is a tensor on it. An
    evaluation has `metrics`, the same on every rank, and costs no collective. If ranks record
    different metrics, a report shows their mean and says so. NaN and infinity are recorded as null.

        >>> with muster.init(device="cpu"):
        ...     muster.record(1, loss=0.5)  # the mean over ranks
        0.5

    Args:
        step: a step of `muster.steps`, which includes its samples and epoch, or a step number; by
            default one more than the last.
        loss: this rank's loss, a number or a tensor of one element: with `muster.steps` the sum of
            its micro-batches' weighted losses. If all ranks' losses are equal in each of the first
            steps, a warning says so: they may compute the same samples.
        metrics: numbers by name, such as {"accuracy": 0.71}.
        model: the model that `muster.sync` or DDP returned: then the bytes of each step are also
            recorded and, from the second step on, the seconds of its phases. The time that a step
            waits for other ranks is `sync_s`.
        samples: number of samples in the step, over all ranks, if `step` does not include it.
        lr: the learning rate of the step.
        grad_norm: norm of the gradient, before clipping.
        log_with: "tensorboard", "wandb", or both in a list: rank 0 also shows this record and all
            later ones there, with the run's settings.

    Raises:
        UsageError: neither a loss nor metrics, an invalid argument, ranks that record different
            steps, no run folder (no launcher, no `muster.init`), or a tracker that is not
            installed.
    """
    run_dir = os.environ.get("MUSTER_RUN_DIR")
    if run_dir is None:
        raise UsageError(
            "muster.record: MUSTER_RUN_DIR, the run folder, is not set"
            "\ntip: call muster.init() first, or start the program with one of Muster's launchers"
        )
    if (loss is None) == (metrics is None):
        raise UsageError("muster.record: pass either loss=... or metrics={...}")
    numbers: dict[str, Any] = {"lr": lr, "grad_norm": grad_norm}
    names: Sequence[Any] = log_with if isinstance(log_with, list | tuple) else [log_with]
    refuse(_problems(step, loss, metrics, model, samples, numbers, names), where="muster.record: ")
    recorder = _recorder(Path(run_dir), current_ranks())
    if metrics is not None:
        recorder.sinks.log_with(names, None, "muster.record: log_with")
        recorder.evaluated(step, metrics)
        return None
    assert loss is not None
    plan = recorder.counted(step, int(samples))
    recorder.sinks.log_with(names, plan.step - 1, "muster.record: log_with")
    shared = program_requests.with_loss(recorder.ranks, plan.step, _number(loss))
    recorder.compare(shared.losses)
    sent = [] if model is None else sent_by(model)
    numbers = {name: _number(value) for name, value in numbers.items()}
    recorder.stepped(plan, model, sent, loss=shared.loss, **numbers)
    recorder.begin()
    return shared.loss


def _problems(
    step: object,
    loss: Any,
    metrics: Any,
    model: object,
    samples: object,
    numbers: dict[str, Any],
    trackers: Sequence[object],
) -> Iterator[str]:
    if step is not None and not isinstance(step, StepPlan):
        yield from whole_number("step", step, 0)
    yield from whole_number("samples", samples, 0)
    if model is not None:
        yield from methods("model", model, "parameters")
    for tracker in trackers:
        yield from one_of("log_with", tracker, *TRACKERS)
    if metrics is None:
        numbers = {"loss": loss, **numbers}
    elif isinstance(metrics, Mapping):
        numbers = {**numbers, **{f"metrics[{name!r}]": metric for name, metric in metrics.items()}}
    else:
        yield (
            f"metrics is of type {type(metrics).__name__}"
            "\ntip: pass a dict: metrics={'accuracy': 0.71}"
        )
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
    """Makes this rank's records of steps, and writes them into `sinks`.

    The trainer has one, and so has a program that calls `record`.
    """

    def __init__(self, sinks: Sinks, ranks: Ranks) -> None:
        self.sinks = sinks
        self.ranks = ranks
        self._step = 0
        self._epoch = 1
        self._equal_steps = (
            0  # steps so far in which all ranks had the same loss; -1: no longer compared
        )
        self._untimed = StepTimer()  # of steps without a model
        self._timer = self._untimed  # of the last step
        self._ended_s = time.perf_counter()  # when that step or an evaluation ended

    def begin(self, model: nn.Module | None = None) -> None:
        """Begin a step now, by default of the model that was given last."""
        if model is not None:
            self._timer = timer_of(model)
        self._timer.begin()
        self._ended_s = time.perf_counter()

    def stepped(
        self,
        plan: StepPlan,
        model: nn.Module | None,
        sent: Sequence[Collective],
        times: StepTimes | None = None,
        **numbers: float,
    ) -> StepRecord:
        """Record a step of `model` that ends now, or has ended with `times`.

        `sent` are this rank's gradient collectives. `numbers` are loss, lr and grad_norm, and other
        fields of the record that the caller knows.
        """
        self._timer = self._untimed if model is None else timer_of(model)
        seconds = (times or self._timer.end_step()).seconds()
        if model is None:
            seconds["optimizer"] = 0.0  # only the waiting is known
        local_samples = plan.local_samples
        if not plan.micro_batches:  # the step is a number: assume equal parts
            local_samples = plan.samples // self.ranks.world_size
        phases: dict[str, Any] = {f"{name}_s": taken_s for name, taken_s in seconds.items()}
        record = StepRecord(
            step=plan.step, epoch=plan.epoch + 1, rank=self.ranks.rank,
            samples=plan.samples, local_samples=local_samples, local_tokens=plan.local_tokens,
            payload_bytes=sum(collective.nbytes for collective in sent), **phases | numbers,
        )  # fmt: skip
        self.sinks.stepped(record, sent)
        return record

    def evaluated(self, step: StepPlan | int | None, metrics: Mapping[str, float]) -> None:
        """Record an evaluation that ends now and began after the last step."""
        if step is not None:
            self.counted(step)
        numbers = {name: float(value) for name, value in metrics.items()}  # waits for a GPU
        record = EvalRecord(
            step=self._step, epoch=self._epoch, rank=self.ranks.rank, samples=0, local_samples=0,
            eval_s=time.perf_counter() - self._ended_s, metrics=numbers,
        )  # fmt: skip
        self.sinks.write(record)
        self.begin()

    def compare(self, losses: Sequence[float]) -> None:
        """Warn if all ranks' losses are the same numbers in each of the first steps."""
        if len(set(losses)) > 1 or len(losses) == 1:
            self._equal_steps = -1  # never again
        if self._equal_steps < 0:
            return
        self._equal_steps += 1
        if self._equal_steps == EQUAL_STEPS:
            self._equal_steps = -1
            if self.ranks.rank == 0:
                warnings.warn(
                    f"muster.record: for {EQUAL_STEPS} steps all {len(losses)} ranks have had "
                    f"the same loss, most recently {losses[0]}: do they compute the same "
                    "samples? Give each rank its own samples, with muster.steps or a "
                    "DistributedSampler, and record its own loss",
                    stacklevel=3,
                )

    def counted(self, step: StepPlan | int | None, samples: int = 0) -> StepPlan:
        """Return `step`, or a `StepPlan` for its number, which is by default the last plus one."""
        if not isinstance(step, StepPlan):
            number = self._step + 1 if step is None else int(step)
            step = StepPlan(samples, (), number, self._epoch - 1)
        self._step = step.step
        self._epoch = step.epoch + 1
        return step


def sent_by(model: nn.Module) -> list[Collective]:
    """Return the gradient collectives of the last pass of a model from `muster.sync` or DDP."""
    if isinstance(model, SyncedDataParallel):
        return model.hook.ranks.ledger.take_step()
    if isinstance(model, DistributedDataParallel) and model.process_group.size() > 1:
        return reducer.collectives(model)
    return []


@lru_cache(maxsize=1)
def _recorder(run_dir: Path, ranks: Ranks) -> Recorder:
    return Recorder(Sinks(run_dir, ranks.rank), ranks)
