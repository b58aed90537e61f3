"""The training loop: the same losses in every exact sync mode, for any ranks and any split."""

import functools
import itertools
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from configs.settings.train import TrainConfig
from muster import orderly_stop
from train.batches.plan import BatchPlan, StepPlan
from train.batches.steps import Position, Steps
from train.checkpoints.manager import RESUME_OR_MOVE, CheckpointManager, StepRequests
from train.distributed import agreement
from train.evaluation.task_metrics import TaskMetrics
from train.loop import feed
from train.loop.evaluation import evaluate
from train.loop.feed import Feed
from train.loop.run_settings import objects_to_reset
from train.loop.step import TrainedModel, named, to_device
from train.model import rng
from train.program.exchange import Shared, exchange
from train.program.recorder import Recorder
from train.program.saved_objects import Checkpoints
from train.records.schema import DriftRecord
from train.records.sinks import FIRST_LOSSES, Console, History, Sinks
from train.records.traffic import Meter
from train.sync.ranks import Collective, HostCopy
from train.sync.step_times import StepTimes, timer_of
from train.tasks.base import Batch, Datasets


class EndedStep(NamedTuple):
    """A step whose numbers may still be on their way from a GPU."""

    plan: StepPlan
    shared: Shared
    norm: HostCopy
    lr: float
    sent: list[Collective]
    times: StepTimes
    sync_seconds: Callable[[], tuple[float, float]]


class Trainer:
    """Trains one task with one sync mode; `build.trainer` builds it and its parts.

    Raises:
        MusterError: the loss or a gradient is no longer finite (on all ranks).
    """

    def __init__(
        self,
        config: TrainConfig,
        trained: TrainedModel,
        datasets: Datasets,
        steps: Steps,
        manager: CheckpointManager,
        checkpoints: Checkpoints,
        history: History,
        console: Console,
        sinks: Sinks,
        *,
        metrics: TaskMetrics | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.config, self.trained, self.datasets, self.steps = config, trained, datasets, steps
        self.task, self.model, self.state = trained.task, trained.model, trained.state
        self.grad_sync, self.ranks = trained.grad_sync, trained.ranks
        self.device = trained.device
        self.manager, self.checkpoints = manager, checkpoints
        self.history, self.console, self.sinks = history, console, sinks
        self.metrics, self.meter = metrics, meter
        self.recorder = Recorder(sinks, trained.ranks)
        self.completed = 0  # the last step that was recorded
        # else only for a stop or --keep-best, which wait for a checkpoint that is being written
        self._makes_checkpoints = config.checkpoint_interval() is not None

    @property
    def plan(self) -> BatchPlan:
        """Which rank computes which samples now."""
        return self.steps.plan

    @property
    def position(self) -> Position:
        """How far this training has come."""
        return self.steps.position

    def resume(self) -> None:
        """Resume from the checkpoint of --resume, if any; otherwise start from the beginning.

        Raises:
            UsageError: there is none, or it belongs to other settings, another model or data set,
                or the folder has another run's checkpoints, from which this run does not continue.
        """
        config = self.config
        if not config.resume:
            self.manager.require_own_folder("", RESUME_OR_MOVE)
            return
        resumed = self.checkpoints.resume_from(
            config.resume,
            self.console.line,
            asked=f"--resume {config.resume}",
            without=objects_to_reset(config),
        )
        if not resumed:
            return
        if config.reset_data:
            self.position.restart_data()
        self.completed = self.position.step
        self.trained.buffers.remember()

    def fit(self) -> History:
        """Train all epochs, or up to --max-steps, and evaluate.

        Raises:
            StoppedCleanly: a signal requested it; a checkpoint was written.
        """
        self._warn_of_warmup()
        self.console.start(self.steps.last, self.position.step)
        self.sinks.total_steps = self.steps.last
        began_s = time.perf_counter()
        stop_signals = signal.SIGINT, signal.Signals[f"SIG{self.config.stop_signal}"]
        with orderly_stop.request.during(*stop_signals):
            # a run that was stopped at the end of an epoch has not evaluated it
            while self.steps.is_epoch_complete or not self._is_over():
                self._train_epoch()
            if self.manager.is_due_at_end(self.position.step):
                self.checkpoints.make(self.position.step, StepRequests(save=True))
        self._evaluate(when="end")
        self.manager.tell_if_none_is_best()
        self.history.total_s = time.perf_counter() - began_s
        self.console.stop()
        return self.history

    def _train_epoch(self) -> None:
        """Train the rest of this epoch. Numbers mark a step's collectives; see step.py."""
        before = self.position.step
        if self.meter is not None:
            self.meter.begin()
        trained, sync = self.trained, self.grad_sync
        unread = deque[EndedStep]()
        # a GPU is given the next step before the numbers of the last one are read
        late = 0 if self.device.type == "cpu" else 1
        with closing(self._loaded_steps()) as steps:
            for plan, batches in steps:
                if not unread:  # else the end of the last step began this one
                    self.recorder.begin(self.model)
                loaded = trained.load(plan, batches)
                weights = trained.loss_weights(plan, loaded)  # (1)
                loss = trained.forward_backward(plan, loaded, weights)  # (2)
                # a mode that is not exact leaves gradients local: each rank clips its own
                norm = 0.0 if sync.is_exact else trained.clip()
                with named("sync"):
                    own_used = sync.used(self.model)
                    more = [trained.buffer_marks(), torch.tensor(own_used)]
                    requests = self._requests(plan.step)
                    shared = exchange(self.ranks, loss, requests, norm, more)  # (3)
                    # a rank that has used all gradients need not wait for the exchange here
                    used = own_used if all(own_used) else shared.more[1].any(0).tolist()
                    sync.sync(self.model, used)  # (4)
                norm = norm if isinstance(norm, Tensor) else trained.clip()  # (5)
                lr = trained.update()  # (6)
                trained.average_buffers(plan, shared)  # (7)

                sent = self.ranks.ledger.take_step()
                times = timer_of(self.model).end_step()
                seconds = sync.sync_seconds()
                unread.append(EndedStep(plan, shared, HostCopy(norm), lr, sent, times, seconds))
                self._record(unread, late)
                if isinstance(batches, Feed):
                    batches.fetch()  # while the device works
                self._equalize()
                asked = shared.requests
                if asked.stop or (asked.save and not self.steps.is_epoch_complete):
                    self._record(unread)
                    self.checkpoints.make(plan.step, asked)
        self._record(unread)
        self.count_traffic(before, self.position.epoch + 1)
        if self.steps.is_epoch_complete:
            self._end_epoch()

    def _record(self, unread: deque[EndedStep], late: int = 0) -> None:
        """Record all steps of `unread` but the last `late`; the host waits for their end."""
        while len(unread) > late:
            self._record_step(unread.popleft())

    def _record_step(self, ended: EndedStep) -> None:
        """Record a step; its numbers must be finite."""
        step = ended.plan
        shared = ended.shared
        grad_norm = float(ended.norm.wait())
        self.trained.require_finite(step.step, shared, grad_norm)
        self.completed = step.step
        comm_s, overlapped_s = ended.sync_seconds()
        record = self.recorder.stepped(
            step, self.model, ended.sent, ended.times,
            loss=shared.loss, lr=ended.lr, grad_norm=grad_norm,
            comm_s=comm_s, overlapped_s=overlapped_s,
        )  # fmt: skip
        self.history.add(record)
        self.console.advance(record.loss)
        every = self.config.log_every
        is_due = record.step <= FIRST_LOSSES or self.console.is_line_due
        if record.step % every == 0 if every else is_due:
            self.console.line(f"step {record.step}  loss {record.loss:.6f}")

    def _warn_of_warmup(self) -> None:
        """Print a line if the learning rate never reaches --lr."""
        last = self.steps.last
        steps = self.config.warmup_steps
        has_own = self.task.schedule(max(1, last)) is not None
        if self.position.step < last < steps and not has_own:
            reached = self.config.lr * (last - 1) / steps
            self.console.line(
                f"the warm-up of {steps} steps is longer than the run of {last} steps, so the "
                f"learning rate reaches only {reached:.1e} instead of {self.config.lr:.1e}; see "
                "--warmup-steps"
            )

    def _is_over(self) -> bool:
        return self.steps.is_over or self._is_patience_over()

    def _is_patience_over(self) -> bool:
        """Whether --patience epochs have passed since the best by --keep-best; if so, print it."""
        patience = self.config.patience
        best = max(self.manager.best_step(), self.position.before)
        if patience is None or self.position.step - best < patience * self.plan.steps_per_epoch:
            return False
        self.console.line(
            f"--patience {patience}: no epoch since step {best} had a better "
            f"{self.config.best()}, so training ends after step {self.position.step}"
        )
        return True

    def count_traffic(self, before: int, epoch: int) -> None:
        """Record what crossed the network since step `before`."""
        # only when all ranks are here: sent data may still wait in the sender's kernel
        self.ranks.all_gather(torch.zeros(1, device=self.device))
        if self.meter is not None:
            step = self.position.step if epoch else 0
            record = self.meter.end(step=step, epoch=epoch, steps=step - before)
            self.sinks.write(record)
            if record.note and self.ranks.rank == 0:
                self.console.line(f"{record.host}, {record.interface}: {record.note}")

    def _end_epoch(self) -> None:
        metrics = self._evaluate(when="epoch")
        self.steps.end_epoch()
        step = self.position.step
        is_best = self.manager.is_best(metrics, step)
        # a request may have come during the evaluation; no further step would tell the other ranks
        asked = exchange(self.ranks, requests=self._requests(step)).requests
        save = asked.save or is_best or self.manager.is_due_after_epoch
        # wait for the best one rather than skip it; at the end a stop request has no effect
        stop = asked.stop and not self.steps.is_over
        self.checkpoints.make(step, StepRequests(stop, save, asked.skip and not is_best))

    def _requests(self, step: int) -> StepRequests:
        """Return what this rank requests after `step`."""
        is_asked = bool(orderly_stop.request.why)
        if self._makes_checkpoints:
            return self.manager.requests(step, stop=is_asked)
        return StepRequests(stop=is_asked)

    def _loaded_steps(self) -> Generator[tuple[StepPlan, Iterator[Batch]], None, None]:
        """Yield the remaining steps of this epoch, each with its micro-batches."""
        while self.steps.left_in_epoch:
            # cutting by length takes time: do it once for each step
            plans, coming = itertools.tee(self.steps.coming())
            batches = self._loaded(coming)
            try:
                for plan in self.steps.segment(plans):
                    yield plan, batches
            finally:
                if isinstance(batches, Feed):
                    batches.close()

    def _loaded(self, coming: Iterator[StepPlan]) -> Iterator[Batch]:
        """Return the micro-batches of the coming steps, which are read ahead."""
        epoch = self.position.epoch
        self.task.start_epoch(epoch)  # before the loader's processes copy the samples
        agreement.wait_for_all(self.ranks.world_size)  # some ranks may have read from a slow disk
        config = self.config
        device = self.device
        is_fetched = device.type == "cuda" and feed.processes(config, device) > 0
        if is_fetched:
            coming, counted = itertools.tee(coming)
        loaded = feed.loader(
            self.datasets.train,
            (list(micro.indices) for plan in coming for micro in plan.micro_batches),
            self.task.collate,
            config,
            device,
            # its own generator: a resumed epoch must not use dropout's
            torch.Generator().manual_seed(rng.hash_seed(config.seed, epoch)),
        )
        if not is_fetched:
            return loaded
        counts = (len(plan.micro_batches) for plan in counted)
        copied = functools.partial(to_device, model=self.model, device=device)
        return Feed(loaded, counts, device, copied)

    def _evaluate(self, when: str) -> dict[str, float]:
        """Evaluate if an evaluation is due now; return the metrics."""
        config = self.config
        wanted = config.evaluate == when or config.epochs == 0
        if wanted or when == "end":
            self.grad_sync.make_replicas_equal(self.model)
        if not wanted or config.evaluate == "never":
            return {}
        # the number of epochs, including the one that ends now
        epoch = self.position.epoch + (1 if when == "epoch" or self.position.in_epoch else 0)
        record = evaluate(
            self.task, self.datasets, self.state, config, self.position.step, epoch, self.metrics
        )
        self.history.evaluations.append(record)
        self.sinks.write(record)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
        self.console.line(f"epoch {record.epoch}  step {self.position.step}  {scores}")
        while self.metrics is not None and self.metrics.messages:
            self.console.line(self.metrics.messages.pop())
        return record.metrics

    def _equalize(self) -> None:
        """If it is due, make all ranks' parameters equal to those of rank 0."""
        every = self.config.equalize_every
        if every and self.position.step % every == 0 and self.ranks.world_size > 1:
            drift = self.state.equalize()
            self.sinks.write(
                DriftRecord(step=self.position.step, rank=self.ranks.rank, drift=drift)
            )
