"""The training loop: the same losses in every sync mode, on any number of ranks, with any split."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from configs.errors import refuse
from configs.schema import TrainConfig
from train import batchnorm
from train.balance.planning import after_split, plan_batches
from train.balance.probe import measure
from train.balance.splitter import Plan, Splitter
from train.checkpoints import random_state
from train.checkpoints.exchange import Files, gather_text
from train.checkpoints.keeper import Keeper, Parts, Position
from train.checkpoints.snapshot import misfits
from train.compiling import compile_layers
from train.console import Console
from train.data import StepPlan, first_samples, hash_seed
from train.evaluation import evaluate
from train.grad_sync import GradSync, all_gather, meet
from train.measure.records import EvalRecord, StepRecord
from train.measure.sinks import Sinks
from train.measure.traffic import Meter
from train.optimizer import build_optimizer, build_schedule, schedule_end
from train.precision import Precision, place, set_dropout
from train.step import Step, Wishes, to_device
from train.stopping import StoppedCleanly, StopRequest
from train.task import Batch, Task
from train.world import World

FIRST_LOSSES = 5  # printed one by one, as the courses ask


@dataclass
class History:
    """What a finished run is summed up from, on every rank alike."""

    first_losses: list[float] = field(default_factory=list)
    steps: list[StepRecord] = field(default_factory=list)
    evaluations: list[EvalRecord] = field(default_factory=list)


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
        keeper: Keeper | None = None,
        meter: Meter | None = None,
    ) -> None:
        self.config, self.world, self.device = config, world, device
        self.task, self.grad_sync, self.console, self.sinks = task, grad_sync, console, sinks
        self.keeper, self.meter = keeper, meter
        self.stopping = StopRequest(config.stop_signal)
        self.datasets = first_samples(
            task.build_datasets(), config.train_samples, config.eval_samples
        )
        random_state.seed(config.seed)  # the same weights on every rank
        model = task.build_model()
        if config.dropout is not None:
            set_dropout(model, config.dropout)
        model = place(model, config.precision, device)
        self.plan = plan_batches(config, world.world_size, device, task, self.datasets.train, model)
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
        self._agreed = Wishes(stop=False, save=False)  # by all ranks, at the last step
        random_state.seed(hash_seed(config.seed, world.rank))  # but not the same dropout

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
        assert self.keeper is not None
        problems = list(misfits(self.parts.model, files["model"]))[:5]
        size = len(self.datasets.train)
        if state["samples"] != size and not self.config.reset_data:
            problems.append(
                f"it was training on {state['samples']} samples, here are {size}; see --reset-data"
            )
        problems += self._schedule_problems(state)
        refuse(problems, where=f"--resume {self.config.resume}: ")
        self.keeper.restore(self.parts, files, state)
        self._step.buffers.remember()
        if self._splitter is not None:
            self._resume_split(self._splitter, state)
        self.history.first_losses += state["first_losses"]
        self.history.evaluations += [EvalRecord(**one) for one in state["evaluations"]]

    def _schedule_problems(self, state: dict[str, Any]) -> Iterator[str]:
        """Whether the learning rate would jump, since the schedule ends at another step."""
        config, now = self.config, schedule_end(self.config, self.plan.steps_per_epoch)
        was = state.get("schedule_end", now)  # older checkpoints do not say
        if was == now or config.schedule == "constant" or config.reset_lr_scheduler:
            return
        if config.reset_data:
            self.console.line(f"the learning rate decays until step {now}, no longer {was}")
            return
        yield (
            f"its learning rate decays until step {was}, but with --epochs {config.epochs} and "
            f"--schedule-steps {config.schedule_steps or 'unset'} it does until step {now}; "
            f"give --schedule-steps {was}, or --reset-lr-scheduler"
        )

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
                    record, wishes = self._step.run(plan, batches, self._wish)
                    self._agreed = Wishes(wishes.stop, wishes.save or self._agreed.save)
                    self._report(record)
                    if wishes.stop or (self._agreed.save and self.at.in_epoch < per_epoch):
                        self._keep()
                self._count_traffic(before, self.at.epoch + 1)
                if self.at.in_epoch == per_epoch:
                    self._end_epoch(last)
            if self.keeper is not None and self.keeper.is_due_at_end(self.at.step):
                self._keep()
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
            steps = self.history.steps[-self.plan.steps_per_epoch :]
            better = self._splitter.after_epoch(steps, self.device, is_last=is_last)
            if better is not None:
                self._use(better)
        if self.keeper is None:
            return
        due = self.keeper.is_due_after_epoch(metrics, self.at.step)
        # the evaluation took a while, and no step comes that would tell the others
        stop = bool(all_gather(self.world, self._wish(self.at.step))[:, 0].any()) and not is_last
        save = due or self._agreed.save
        self._agreed = Wishes(stop, save)
        if stop or save:
            self._keep()

    def _keep(self) -> None:
        """Make a checkpoint, and end here if that was asked for."""
        assert self.keeper is not None
        stop, self._agreed = self._agreed.stop, Wishes(stop=False, save=False)
        self.keeper.save(
            self.parts,
            {
                "samples": len(self.datasets.train),
                "schedule_end": schedule_end(self.config, self.plan.steps_per_epoch),
                "first_losses": self.history.first_losses,
                "evaluations": [asdict(one) for one in self.history.evaluations],
                "split": self._splitter and self._splitter.state(),
            },
        )
        if stop:
            self.keeper.finish()
            # by whichever rank was asked; a launcher goes by it
            reasons = gather_text(self.world, self.stopping.why, self.device)
            why = next(filter(None, reasons))
            raise StoppedCleanly(self.at.step, why, self.keeper.folder)

    def _wish(self, step: int) -> Tensor:
        """What this rank wants to be done after `step`: stop, make a checkpoint."""
        stop = self.keeper is not None and bool(self.stopping.why)
        save = self.keeper is not None and self.keeper.is_due(step)
        return torch.tensor([stop, save], dtype=torch.float64, device=self.device)

    def _batches(self, last: int) -> Iterator[tuple[StepPlan, Iterator[Batch]]]:
        """The steps of this epoch that are still to do, each with its micro-batches."""
        epoch = self.at.epoch
        first, left = self.at.in_epoch, last - self.at.step
        plans, ahead = itertools.tee(
            itertools.islice(self.plan.epoch(epoch, self.world.rank), first, first + left)
        )
        self.task.start_epoch(epoch)  # before the loader's processes take a copy of the samples
        loader: Iterable[Batch] = DataLoader(
            self.datasets.train,  # type: ignore[arg-type]
            batch_sampler=(list(micro.indices) for plan in ahead for micro in plan.micro_batches),
            collate_fn=self.task.collate,
            num_workers=self.config.data_workers,
            # its own: a resumed epoch must not draw from the one that dropout draws from
            generator=torch.Generator().manual_seed(hash_seed(self.config.seed, epoch)),
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
        self.history.steps.append(record)
        self.sinks.write(record)
        self.sinks.collectives(record, self._step.collectives)
        self.console.advance(record.loss)
        if record.step <= FIRST_LOSSES:
            self.history.first_losses.append(record.loss)
        every = self.config.log_every
        if record.step % every == 0 if every else record.step <= FIRST_LOSSES:
            self.console.line(f"step {record.step}  loss {record.loss:.6f}")
        for line in self.grad_sync.take_news():
            self.console.line(line)
