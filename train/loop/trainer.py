"""The training loop: the same losses in every sync mode, on any number of ranks, with any split."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from configs.settings.train import TrainConfig
from muster.errors import refuse
from train.batches.auto_split.planner import after_split, plan_batches
from train.batches.auto_split.probe import measure
from train.batches.auto_split.splitter import Plan, Splitter
from train.batches.plan import StepPlan, first_samples
from train.checkpoints import resume
from train.checkpoints.exchange import Files, gather_text
from train.checkpoints.manager import CheckpointManager, Parts, Position, StepRequests
from train.checkpoints.snapshot import misfits
from train.distributed import patience
from train.distributed.stop_request import StoppedCleanly, StopRequest
from train.distributed.world import World
from train.loop.evaluation import evaluate
from train.loop.step import Step, to_device
from train.model import rng
from train.model.compilation import compile_layers
from train.model.optimizer import build_optimizer, build_schedule, schedule_end
from train.model.precision import Precision, place, set_dropout
from train.records.console import Console
from train.records.schema import EvalRecord, StepRecord
from train.records.sinks import Sinks
from train.records.summary import FIRST_LOSSES, History
from train.records.traffic import Meter
from train.sync import batchnorm
from train.sync.base import GradSync, all_gather, meet
from train.tasks.base import Batch, Task


class Trainer:
    """Trains one task with one sync mode; everything that can be exchanged is built here.

    Raises:
        MusterError: the loss or the gradient stops being a number (on all ranks).
    """

    def __init__(
        self,
        config: TrainConfig,
        world: World,
        device: torch.device,
        task: Task,
        grad_sync: GradSync,
        console: Console,
        sinks: Sinks,
        checkpoints: CheckpointManager | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.config, self.world, self.device = config, world, device
        self.task, self.grad_sync, self.console, self.sinks = task, grad_sync, console, sinks
        self.checkpoints, self.meter = checkpoints, meter
        self.stopping = StopRequest(config.stop_signal)
        self.datasets = first_samples(
            task.build_datasets(), config.train_samples, config.eval_samples
        )
        rng.seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        model = place(model, config.precision, device)
        self.plan = plan_batches(config, world.world_size, device, task, self.datasets.train, model)
        patience.wait_for_all(world)  # whose data and models came from disks of unlike speed
        self._splitter = self._split(model) if config.split == "auto" else None
        if config.batchnorm == "synced" and world.world_size > 1:
            model = batchnorm.convert(model, config.timeout_s)
        if config.compile:
            compile_layers(model, device)
        if meter is not None:
            meter.begin()
        self.model = grad_sync.wrap(model)
        self._count_traffic(before=0, epoch=0)
        self.optimizer = grad_sync.prepare(build_optimizer(config, self.model))
        self.schedule = build_schedule(config, self.optimizer, self.plan.steps_per_epoch)
        self.precision = grad_sync.precision(config, device)
        self.history = History()
        self.parts = Parts(model, self.optimizer, self.schedule, self.precision, grad_sync)
        self._step = Step(config, world, device, task, grad_sync, self.model, self.parts)
        rng.seed(rng.hash_seed(config.seed, world.rank))  # but not the same dropout

    def _split(self, model: nn.Module) -> Splitter:
        """Measure the ranks with the bare model, and plan after it."""
        config, world = self.config, self.world
        splitter = Splitter(
            world, config.batch_size, config.sync, self.console.line, self.sinks.write,
            mean_tokens=self.plan.mean_length if self.plan.by_length else 0.0,
        )  # fmt: skip
        meet(world, self.device)  # all at once, as in training
        probe = measure(
            self.task,
            model,
            self.datasets.train,
            Precision(config.precision, self.device),
            lambda batch: to_device(batch, model, self.device),
            build_optimizer(config, model),
            share=max(1, config.batch_size // world.world_size // config.accumulation),
            sharers=world.local_world_size,
            lengths=self.plan.lengths if self.plan.by_length else (),
        )
        patience.wait_for_all(world)
        self._use(splitter.begin(probe, model, self.device))
        return splitter

    def _use(self, plan: Plan) -> None:
        self.plan = after_split(self.plan, plan)

    @property
    def at(self) -> Position:
        """How far this training is."""
        return self.parts.at

    def resume(self, files: Files, state: dict[str, Any]) -> None:
        """Go on from a checkpoint instead of from the beginning.

        Raises:
            UsageError: it is that of another model or another data set.
        """
        assert self.checkpoints is not None
        problems = list(misfits(self.parts.model, files["model"]))[:5]
        size = len(self.datasets.train)
        if state["samples"] != size and not self.config.reset_data:
            problems.append(
                f"it was training on {state['samples']} samples, here are {size}; see --reset-data"
            )
        ends = schedule_end(self.config, self.plan.steps_per_epoch)
        problems += resume.moved_schedule(self.config, ends, state, self.console)
        refuse(problems, where=f"--resume {self.config.resume}: ")
        self.checkpoints.restore(self.parts, files, state)
        self._step.buffers.remember()
        if self._splitter is not None:
            self._resume_split(self._splitter, state)
        self.history.first_losses += state["first_losses"]
        self.history.evaluations += [EvalRecord(**one) for one in state["evaluations"]]

    def _resume_split(self, splitter: Splitter, state: dict[str, Any]) -> None:
        """Go on with the checkpoint's plan, bit for bit; other workers keep what was measured."""
        if state["split"] and state["world_size"] == self.world.world_size:
            self.console.line("split auto: going on with the checkpoint's plan")
            self._use(splitter.restore(state["split"]))

    def fit(self) -> History:
        """Train all epochs, or up to --max-steps, and evaluate.

        Raises:
            StoppedCleanly: a signal asked for it; there is a checkpoint.
        """
        per_epoch = self.plan.steps_per_epoch
        total = self.at.before + self.config.epochs * per_epoch
        last = min(total, self.config.max_steps or total)
        self.console.start(last, self.at.step)
        with self.stopping:
            while self.at.epoch < self.config.epochs and self.at.step < last:
                before = self.at.step
                if self.meter is not None:
                    self.meter.begin()
                for plan, batches in self._batches(last):
                    record, requests = self._step.run(plan, batches, self._requests)
                    self._report(record)
                    if requests.stop or self.at.in_epoch < per_epoch:
                        self._checkpoint(requests)
                self._count_traffic(before, self.at.epoch + 1)
                if self.at.in_epoch == per_epoch:
                    self._end_epoch(last)
            if self.checkpoints is not None and self.checkpoints.is_due_at_end(self.at.step):
                self._checkpoint(StepRequests(save=True))
        self._evaluate(when="end")
        self.console.stop()
        return self.history

    def _count_traffic(self, before: int, epoch: int) -> None:
        """Write down what crossed the network since step `before`."""
        meet(self.world, self.device)  # what is sent may still wait in the sender's kernel
        if self.meter is not None:
            step = self.at.step if epoch else 0
            record = self.meter.end(step=step, epoch=epoch, steps=step - before)
            self.sinks.write(record)
            if record.note and self.world.is_main:
                self.console.line(f"{record.host}, {record.interface}: {record.note}")

    def _end_epoch(self, last: int) -> None:
        metrics = self._evaluate(when="epoch")
        self.at.epoch, self.at.in_epoch = self.at.epoch + 1, 0
        is_last = self.at.step >= last or self.at.epoch == self.config.epochs
        if self._splitter is not None:
            steps = list(self.history.steps)[-self.plan.steps_per_epoch :]
            better = self._splitter.after_epoch(steps, self.device, is_last=is_last)
            if better is not None:
                self._use(better)
        if self.checkpoints is None:
            return
        is_best = self.checkpoints.is_best(metrics, self.at.step)
        # the evaluation took a while, and no step comes that would tell the others
        asked = StepRequests(*all_gather(self.world, self._requests(self.at.step)).any(0).tolist())
        save = asked.save or is_best or self.checkpoints.is_due_after_epoch
        # the best is waited for, and a stop is of no use at the end
        self._checkpoint(StepRequests(asked.stop and not is_last, save, asked.busy and not is_best))

    def _checkpoint(self, requests: StepRequests) -> None:
        """Make a checkpoint if one is due, and end here if that was asked for."""
        if self.checkpoints is None or not (requests.save or requests.stop):
            return
        notes = {
            "samples": len(self.datasets.train),
            "schedule_end": schedule_end(self.config, self.plan.steps_per_epoch),
            "first_losses": self.history.first_losses,
            "evaluations": [asdict(one) for one in self.history.evaluations],
            "split": self._splitter and self._splitter.state(),
        }
        self.checkpoints.make(self.parts, notes, requests)
        if requests.stop:
            # by whichever rank was asked; a launcher goes by it
            reasons = gather_text(self.world, self.stopping.why, self.device)
            why = next(filter(None, reasons))
            raise StoppedCleanly(self.at.step, why, self.checkpoints.folder)

    def _requests(self, step: int) -> Tensor:
        """What this rank wants after `step`, as `StepRequests` has it."""
        requests = StepRequests()
        if self.checkpoints is not None:
            is_due, is_busy = self.checkpoints.is_due(step), self.checkpoints.is_busy
            requests = StepRequests(bool(self.stopping.why), is_due, is_busy)
        return torch.tensor(requests, dtype=torch.float64, device=self.device)

    def _batches(self, last: int) -> Iterator[tuple[StepPlan, Iterator[Batch]]]:
        """The steps of this epoch that are still to do, each with its micro-batches."""
        epoch = self.at.epoch
        first, left = self.at.in_epoch, last - self.at.step
        plans, ahead = itertools.tee(
            itertools.islice(self.plan.epoch(epoch, self.world.rank), first, first + left)
        )
        self.task.start_epoch(epoch)  # before the loader's processes take a copy of the samples
        patience.wait_for_all(self.world)  # which may have read from a slow disk
        loader: Iterable[Batch] = DataLoader(
            self.datasets.train,  # type: ignore[arg-type]
            batch_sampler=(list(micro.indices) for plan in ahead for micro in plan.micro_batches),
            collate_fn=self.task.collate,
            num_workers=self.config.data_workers,
            # its own: a resumed epoch must not draw from the one that dropout draws from
            generator=torch.Generator().manual_seed(rng.hash_seed(self.config.seed, epoch)),
            pin_memory=self.device.type == "cuda",
        )
        batches = iter(loader)
        for plan in plans:
            yield plan, batches

    def _evaluate(self, when: str) -> dict[str, float]:
        """The metrics, if they are wanted now."""
        wanted = self.config.evaluate == when or self.config.epochs == 0
        if wanted or when == "end":
            self.grad_sync.settle(self.model)
        if not wanted or self.config.evaluate == "never":
            return {}
        # at the end of an epoch its number is one more than that of those before it
        epoch = self.at.epoch + (1 if when == "epoch" or self.at.in_epoch else 0)
        record = evaluate(
            self.task, self.parts.model, self.datasets, self.world, self.precision,
            lambda batch: to_device(batch, self.parts.model, self.device),
            self.config.eval_batch_size,
            by_length=self.config.length_balance, step=self.at.step, epoch=epoch,
        )  # fmt: skip
        self.history.evaluations.append(record)
        self.sinks.write(record)
        scores = "  ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
        self.console.line(f"epoch {record.epoch}  step {self.at.step}  {scores}")
        return record.metrics

    def _report(self, record: StepRecord) -> None:
        self.history.add(record)
        self.sinks.write(record)
        self.sinks.collectives(record, self._step.collectives)
        self.console.advance(record.loss)
        every = self.config.log_every
        if record.step % every == 0 if every else record.step <= FIRST_LOSSES:
            self.console.line(f"step {record.step}  loss {record.loss:.6f}")
        for line in self.grad_sync.take_messages():
            self.console.line(line)
