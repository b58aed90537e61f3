"""Which samples each rank computes in each step, for your own training loop."""

import math
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

from torch import Tensor, nn

from muster.arguments import methods, number, whole_number
from muster.errors import UsageError, refuse

from ..sync.ranks import Ranks, current_ranks
from ..sync.step_times import timer_of
from .by_length import PASS_TOKENS
from .plan import BatchPlan, StepPlan, each, packed
from .splitter import MEASURED_STEPS, Pace, Splitter


def steps(
    dataset: Sized | int,
    *,
    batch_size: int,
    seed: int = 0,
    epochs: int = 1,
    split: Sequence[float] | Literal["even", "auto"] = "even",
    lengths: Sequence[int] | Tensor = (),
    units: Sequence[float] | Tensor = (),
    accumulation: int = 1,
    model: nn.Module | None = None,
) -> "Steps":
    """The steps of a training: in each, this rank's micro-batches and their weights.

    Step k of an epoch takes samples [k M, (k + 1) M) of one seeded permutation, whatever the
    number of ranks and the split, with M = `batch_size`. With the mean loss of each micro-batch
    multiplied by its `weight`, the plain mean of gradients over ranks, which `muster.sync`
    computes, is the gradient of the mean loss over all M samples.

        >>> for step in muster.steps(10, batch_size=4):
        ...     print(step.step, [len(micro.indices) for micro in step.micro_batches])
        1 [4]
        2 [4]
        3 [2]

    Args:
        dataset: a dataset with a length, or that length.
        batch_size: samples per step, over all ranks.
        seed: seed of the permutations, of which each epoch has its own.
        epochs: number of passes over all samples.
        split: the ranks' parts: ratios such as [8, 4, 4, 1], "even", or "auto", by the speeds that
            are measured during the training, which needs `model`.
        lengths: tokens of each sample, whole numbers of shape (n,): samples of similar lengths are
            then computed together.
        units: the weight of each sample in the mean loss, numbers of shape (n,), if that is not a
            mean over samples: its number of labels for a mean over tokens, or its class's weight.
        accumulation: least number of micro-batches into which each rank's part is cut.
        model: what `muster.sync` returned.

    Raises:
        UsageError: an invalid argument.
    """
    ranks = current_ranks()
    size: Any = len(dataset) if isinstance(dataset, Sized) else dataset
    parts: Any = [1.0] * ranks.world_size if isinstance(split, str) else split

    def problems() -> Iterator[str]:
        least = {"batch_size": batch_size, "epochs": epochs, "accumulation": accumulation}
        for name, value in {"len(dataset)": size, **least}.items():
            yield from whole_number(name, value, 1)
        yield from whole_number("seed", seed)
        if isinstance(split, str) and split not in ("even", "auto"):
            yield f"unknown split {split!r}; expected even, auto, or a number for each rank"
        if split == "auto" and model is None:
            yield (
                "split='auto' needs the model to measure the ranks' speed"
                "\ntip: pass model=muster.sync(...)"
            )
        elif split == "auto":
            yield from methods("model", model, "parameters")
        yield from _no_ratios(parts, ranks.world_size)
        if not _are_numbers(lengths, partial(whole_number, least=0)):
            yield "lengths must be whole numbers of tokens, one for each sample"
        elif len(lengths) not in (0, size):
            yield f"there are {len(lengths)} lengths for {size} samples"
        if not _are_numbers(units, partial(number, least=0, most=sys.float_info.max)):
            yield "units must be numbers >= 0, one for each sample"
        elif len(units) not in (0, size):
            yield f"there are {len(units)} units for {size} samples"

    refuse(problems(), where="muster.steps: ")
    plan = BatchPlan(
        int(size), int(batch_size), tuple(map(float, parts)), int(accumulation), int(seed),
        lengths=packed("q", lengths),
        pass_tokens=PASS_TOKENS[ranks.device.type] if len(lengths) else None,
        units=packed("d", units),
    )  # fmt: skip
    return Steps(plan, ranks, int(epochs), model if split == "auto" else None)


def _are_numbers(values: Any, problems: Callable[[str, Any], Iterator[str]]) -> bool:
    """Whether `values` is a sequence in which no value has `problems`."""
    is_sequence = values.ndim > 0 if isinstance(values, Tensor) else hasattr(values, "__len__")
    return is_sequence and not any(any(problems("", value)) for value in each(values))


def _no_ratios(split: Any, world_size: int) -> Iterator[str]:
    """A line if `split` is not a valid number for each rank."""
    if not _are_numbers(split, number):
        yield f"split is {split!r}\ntip: pass even, auto, or a number for each rank"
    elif len(weights := [*map(float, split)]) != world_size:
        yield f"split has {len(weights)} numbers, but there are {world_size} ranks"
    elif not sum(weights) > 0 or not all(0 <= weight < math.inf for weight in weights):
        yield f"split is {weights}; its numbers must be >= 0, and at least one must be > 0"


@dataclass
class Position:
    """How far a run has come; together with the plan, it determines which samples come next."""

    step: int = 0  # optimizer steps completed, or begun
    epoch: int = 0  # 0 is the first
    in_epoch: int = 0  # steps of this epoch among them
    before: int = 0  # steps completed before the data restarted (--reset-data)

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(asdict(Position(**state)))

    def restart_data(self) -> None:
        """Make the next step the first one of the first epoch."""
        self.load_state_dict({"step": self.step, "before": self.step})


class Steps:
    """Iterates over the remaining steps, from one epoch to the next; see `steps`.

    Its `state_dict` lets a training continue after the step that was handed out last. So the
    training loop itself must iterate over it. Code that reads ahead of the loop uses `batches`.
    """

    def __init__(
        self,
        plan: BatchPlan,
        ranks: Ranks,
        epochs: int,
        model: nn.Module | None = None,
        *,
        most: int | None = None,
        splitter: Splitter | None = None,
    ) -> None:
        """`model`: its speeds on the ranks decide their parts; `most`: the largest step number."""
        self.plan = plan
        self.epochs = epochs
        self.position = Position()
        self.measured = 0  # the step up to which speeds were measured
        self.is_read_ahead = False  # whether `batches` started here
        self._ranks = ranks
        self._most = most
        self._timer = None if model is None else timer_of(model)
        self._pace = Pace()
        self._splitter = splitter or Splitter(ranks)

    def __len__(self) -> int:
        """The steps of all epochs together."""
        return self.epochs * self.plan.steps_per_epoch

    @property
    def step(self) -> int:
        """The number of the step that was handed out last."""
        return self.position.step

    @property
    def last(self) -> int:
        """The number of the last step of all."""
        total = self.position.before + len(self)
        return min(total, self._most or total)

    @property
    def is_auto(self) -> bool:
        """Whether measured speeds decide the parts."""
        return self._timer is not None

    def __iter__(self) -> Iterator[StepPlan]:
        while not self.is_over:
            yield from self.segment()
            if self.is_epoch_complete:
                self.end_epoch()

    def segment(self, coming: Iterator[StepPlan] | None = None) -> Iterator[StepPlan]:
        """Hand out the steps of `coming`, moving the position; then decide parts anew, if due."""
        for plan in coming or self.coming():
            self.position.step += 1
            self.position.in_epoch += 1
            yield plan
            if self._timer is not None:
                amount = plan.local_tokens if self.plan.by_length else plan.local_samples
                self._pace.add(self._timer.take_step().seconds()["forward"], amount)
        if self._timer is not None and self.left_in_epoch:
            self._split_anew()

    def coming(self) -> Iterator[StepPlan]:
        """The steps until this epoch ends, or until parts may change; the position stays."""
        most = self._steps_with_these_parts() if self.is_auto else self.left_in_epoch
        return islice(self.left(), min(most, self.left_in_epoch))

    def left(self) -> Iterator[StepPlan]:
        """The steps of all epochs after the one handed out last; the position stays."""
        return self._after(replace(self.position))  # a copy: this position, whenever they are read

    def _after(self, at: Position) -> Iterator[StepPlan]:
        step, done = at.step, at.in_epoch
        for epoch in range(at.epoch, self.epochs):
            for plan in self.plan.epoch(epoch, self._ranks.rank, done):
                step += 1
                yield replace(plan, step=step, epoch=epoch)
            done = 0

    def _steps_with_these_parts(self) -> int:
        """The number of steps until parts may change.

        With split="auto" they may change after 8, 64, 512... steps, and at the end of an epoch.
        """
        if not self.measured:
            return MEASURED_STEPS
        done = self.position.step - self.position.before
        change = MEASURED_STEPS
        while change <= done:
            change *= 8
        return change - done

    @property
    def is_over(self) -> bool:
        """Whether no step is left."""
        return self.position.epoch >= self.epochs or self.step >= self.last

    @property
    def is_epoch_complete(self) -> bool:
        """Whether all steps of this epoch were handed out."""
        return 0 < self.position.in_epoch == self.plan.steps_per_epoch

    @property
    def left_in_epoch(self) -> int:
        """How many steps of this epoch are still to come."""
        at = self.position
        return max(0, min(self.plan.steps_per_epoch - at.in_epoch, self.last - at.step))

    def end_epoch(self) -> None:
        """Begin the next epoch, with parts by the speeds of this one if they are measured."""
        self.position.epoch += 1
        self.position.in_epoch = 0
        if self._timer is not None:
            self._split_anew()

    def _split_anew(self) -> None:
        """Give faster ranks more samples if that gains enough; collective."""
        self.measured = self.step
        if self._pace.steps > 1:
            self.plan = self._splitter.rebalanced(self.plan, self.step, *self._pace.take())

    def require_handed_out(self, step: int) -> None:
        """Refuse a checkpoint after `step` if later steps were handed out: it would skip samples.

        Raises:
            UsageError: something, such as a DataLoader with workers, takes steps ahead.
        """
        if self.step > step:
            raise UsageError(
                f"muster.steps: step {self.step} was read ahead while the loop is at step "
                f"{step}, so a checkpoint would skip samples"
                "\ntip: pass batch_sampler=steps.batches() to the DataLoader, and iterate over "
                "steps in the loop: for step in steps: for micro, batch in "
                "zip(step.micro_batches, loader)"
            )

    def batches(self) -> "Batches":
        """The samples of each remaining micro-batch, for `batch_sampler=` of a DataLoader.

        It may be read ahead, as by a DataLoader with workers: reading does not move the position.
        Each iteration over it begins after the last step of the loop. The DataLoader needs its own
        generator. Otherwise it draws from torch's when it begins, and dropout differs after a
        resume.

            own = torch.Generator().manual_seed(rank)
            batches = steps.batches()
            loader = iter(DataLoader(dataset, batch_sampler=batches, num_workers=4, generator=own))
            for step in steps:
                for micro, batch in zip(step.micro_batches, loader):

        Raises:
            UsageError: split is "auto", which decides on the parts during the training.
        """
        if self._timer is not None:
            raise UsageError(
                "muster.steps: split='auto' changes the split during training, so batches "
                "cannot be read ahead"
                "\ntip: load the samples of step.micro_batches in the loop, or set a fixed split"
            )
        return Batches(self)

    def state_dict(self) -> dict[str, Any]:
        """The position, and the samples it refers to."""
        plan = self.plan
        return {
            "step": self.step,
            "dataset_size": plan.dataset_size,
            "batch_size": plan.batch_size,
            "seed": plan.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved position, on any number of ranks and with any split.

        Raises:
            UsageError: the saved steps were over other samples, or a DataLoader has read ahead.
        """
        if self.is_read_ahead:
            raise UsageError(
                "muster.steps: a DataLoader has already started to read steps.batches() at "
                "another step"
                "\ntip: resume first, then call iter(loader)"
            )
        now = self.state_dict()
        refuse(
            f"muster.steps: {name} is {now[name]}, but was {state[name]} in the checkpoint"
            for name in ("dataset_size", "batch_size", "seed")
            if now[name] != state[name]
        )
        epoch, in_epoch = divmod(state["step"], self.plan.steps_per_epoch)
        self.position.load_state_dict({"step": state["step"], "epoch": epoch, "in_epoch": in_epoch})


class Batches:
    """See `Steps.batches`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def __len__(self) -> int:
        """The micro-batches after the last step of the loop, up to the last epoch's end."""
        steps = self._steps
        if steps.plan.by_length:  # each step has its own number of them
            return sum(len(plan.micro_batches) for plan in steps.left())
        return steps.plan.accumulation * (len(steps) - steps.step)

    def __iter__(self) -> Iterator[list[int]]:
        self._steps.is_read_ahead = True
        plans = self._steps.left()
        return (list(micro.indices) for plan in plans for micro in plan.micro_batches)
