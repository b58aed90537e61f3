"""Workers of one process group train every case of the equality matrix in turn.

The result of a case is its losses and final parameters; every rank checks that all ranks have the
same bits.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import muster
from configs.settings.train import TrainConfig
from tests.train.matrix_tasks import TASKS
from tests.train.on_ranks import flat, trainer_of
from tests.train.retained import assert_same_bits, params_of
from train.loop import build
from train.loop.evaluation import lengths_of
from train.loop.step import build_schedule, to_device
from train.loop.trainer import Trainer
from train.records.sinks import History
from train.sync import ranks
from train.sync.ddp import hooks
from train.sync.ranks import Ranks

CPU = torch.device("cpu")
LIBRARY = ("all_reduce", "ddp", "gather_scatter")
BY_LIBRARY = "|library"  # ends the name of a case that was trained without our loop
BATCH = 16  # of 60 samples: the last batch of an epoch has only 12
# Two epochs of four steps: enough for an epoch's short batch, a learning rate that rises and falls,
# and differences that grow.
STEPS = 8
TRAININGS = [
    ("bert", "fp64"),
    ("patchy", "fp64"),
    ("tokens", "fp64"),
    ("bert", "fp32"),
    ("mlp", "fp32"),
]
# With this bucket size, some of BERT's matrices have a bucket to themselves; others share a bucket.
SMALL_MB = 0.004
EVEN, UNEVEN, IDLE = "even", "6,1,2", "0,1,1"  # splits of three ranks
# For each mode and bucket size: the split, accumulation and clipping for each of TRAININGS. In
# float64, where the tolerance is tightest, each mode and bucket size is used with every split.
# fmt: off
CASES = {
    ("gather_scatter", 0.0): [
        (EVEN, 1, 0.05), (IDLE, 3, 0.0), (UNEVEN, 3, 0.0), (EVEN, 3, 0.0), (EVEN, 1, 0.05),
    ],
    ("gather_scatter", SMALL_MB): [
        (IDLE, 3, 0.0), (UNEVEN, 3, 0.0), (EVEN, 3, 0.0), (IDLE, 3, 0.05), (IDLE, 3, 0.0),
    ],
    ("all_reduce", 0.0): [
        (UNEVEN, 3, 0.0), (EVEN, 3, 0.0), (IDLE, 3, 0.05), (UNEVEN, 3, 0.05), (UNEVEN, 3, 0.0),
    ],
    ("all_reduce", SMALL_MB): [
        (EVEN, 3, 0.0), (IDLE, 3, 0.05), (UNEVEN, 3, 0.05), (EVEN, 3, 0.05), (EVEN, 3, 0.0),
    ],
    ("ddp", 0.0): [
        (IDLE, 3, 0.05), (UNEVEN, 3, 0.05), (EVEN, 3, 0.05), (IDLE, 1, 0.0), (IDLE, 3, 0.05),
    ],
    ("ddp", SMALL_MB): [
        (UNEVEN, 3, 0.05), (EVEN, 3, 0.05), (IDLE, 1, 0.0), (UNEVEN, 1, 0.0), (UNEVEN, 3, 0.05),
    ],
    ("accelerate", 25.0): [
        (EVEN, 3, 0.05), (IDLE, 1, 0.0), (UNEVEN, 1, 0.0), (EVEN, 1, 0.0), (EVEN, 3, 0.05),
    ],
    ("zero1", SMALL_MB): [
        (IDLE, 1, 0.0), (UNEVEN, 1, 0.0), (EVEN, 1, 0.0), (IDLE, 1, 0.05), (IDLE, 1, 0.0),
    ],
    ("fsdp", 25.0): [
        (UNEVEN, 1, 0.0), (EVEN, 1, 0.0), (IDLE, 1, 0.05), (UNEVEN, 1, 0.05), (UNEVEN, 1, 0.0),
    ],
}
# fmt: on


@dataclass(frozen=True)
class Case:
    task: str
    precision: str
    mode: str
    bucket_mb: float
    split: str
    accumulation: int
    clip: float

    @property
    def name(self) -> str:
        return "|".join(map(str, vars(self).values()))

    @property
    def by_rows(self) -> bool:
        """Whether embeddings send only the rows in use."""
        return self.bucket_mb > 0 and self.mode in ("gather_scatter", "all_reduce", "zero1")

    @property
    def reference(self) -> "Case":
        """The case that it must equal: one process, no accumulation, no split."""
        return replace(self, mode="single", bucket_mb=25.0, split="even", accumulation=1)


def cases(precision: str) -> list[Case]:
    """Return the cases of three ranks at one precision."""
    return [
        Case(task, precision, *mode, *case)
        for mode, of_mode in CASES.items()
        for (task, own), case in zip(TRAININGS, of_mode, strict=True)
        if own == precision
    ]


def settings(case: Case, task: Any, steps: int) -> TrainConfig:
    return TrainConfig(
        task="synthetic", sync=case.mode, bucket_mb=case.bucket_mb,
        overlap=case.bucket_mb > 0,  # 0: as in the courses
        sparse_rows=case.by_rows, split=case.split, accumulation=case.accumulation,
        max_grad_norm=case.clip, precision=case.precision, dropout=0.0,  # type: ignore[arg-type]
        length_balance=case.mode != "single",  # so that the references are split without lengths
        batch_size=BATCH, epochs=25, max_steps=steps, warmup_steps=5, device="cpu",
        **task.optimizer,
    )  # fmt: skip


def train(
    case: Case, ranks: Ranks, task: Any, steps: int, **more: Any
) -> tuple[History, nn.Module, Trainer]:
    config = replace(settings(case, task, steps), **more)
    trainer = trainer_of(config, ranks, task(config, ranks.rank))
    history = trainer.fit()
    return history, trainer.state.model, trainer


def train_by_library(case: Case, task: Any, steps: int) -> tuple[list[float], nn.Module]:
    """Do the same training in a user's loop, with only `muster.sync` and `muster.steps`."""
    config = settings(case, task, steps)
    own = task(config, dist.get_rank())
    samples = own.build_datasets().train
    model = muster.sync(
        build.model(config, own, CPU), case.mode, bucket_mb=case.bucket_mb,
        sparse_rows=case.by_rows, find_unused_parameters=True,
    )  # fmt: skip
    optimizer = build.optimizer(config, model)
    plan = muster.steps(
        samples, batch_size=BATCH, seed=config.seed, epochs=25, accumulation=case.accumulation,
        split=config.split_weights() or "even", lengths=lengths_of(own, samples),
    )  # fmt: skip
    schedule = build_schedule(config, optimizer, plan.plan.steps_per_epoch)
    losses = []
    for step in itertools.islice(plan, steps):
        mean = torch.zeros((), dtype=torch.float64)
        for micro in step.micro_batches:
            batch = to_device(own.collate([samples[at] for at in micro.indices]), model, CPU)
            with micro.on(model):
                loss = own.forward(model, batch).loss * micro.weight
                loss.backward()
            mean += loss.detach()
        if case.clip:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
    return losses, model.module


def assert_communicates_once(case: Case, history: History, model: nn.Module, ranks: Ranks) -> None:
    """Check that a step passes each gradient to collectives once, whatever its micro-batches."""
    if case.task == "patchy":
        return  # some of its gradients are missing in some steps
    size, params, by_rows = ranks.world_size, list(model.parameters()), []
    if case.by_rows and case.task in ("bert", "tokens"):
        by_rows = [one.weight for one in model.modules() if isinstance(one, nn.Embedding)]
    whole, rows = (sum(one.nbytes for one in some) for some in (params, by_rows))
    # gathered and scattered; or parts of all, and afterwards its own
    times = {"single": 0, "gather_scatter": 2, "zero1": 1 + 1 / size}.get(case.mode, 1)
    least, most = int(times * (whole - rows)), times * whole - (rows > 0)
    if case.mode == "zero1":  # buckets are padded
        most += (size + 1) * sum(one.itemsize for one in params)
    if case.mode == "fsdp":  # its own part for each pass, then parts of all
        part = sum(-(-len(one) // size) * one[:1].nbytes for one in params)
        least, most = part * (1 + size), part * (case.accumulation + size)
    found = [step.payload_bytes for step in history.steps]
    assert least <= min(found) <= max(found) <= most, f"{case.name}: {found}: {least} to {most}"


def result(losses: list[float], params: Iterable[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"losses": torch.tensor(losses, dtype=torch.float64), "params": flat(list(params))}


def numbers_of(history: History) -> dict[str, torch.Tensor]:
    """Return what step records contain besides the loss, which must be equal in every mode."""
    counts = [[one.step, one.epoch, one.samples, one.lr] for one in history.steps]
    norms = [one.grad_norm for one in history.steps]
    return {
        "counts": torch.tensor(counts, dtype=torch.float64),
        "norms": torch.tensor(norms, dtype=torch.float64),
    }


def small_limits() -> None:
    hooks.LEAST_BYTES = 0  # so that even these small embeddings are sent by rows
    ranks.BROADCAST_BYTES = 2**12  # and weights are broadcast in several groups


def work(own: Ranks, precision: str) -> dict[str, Any]:
    small_limits()
    found: dict[str, Any] = {}
    chosen = cases(precision)
    if own.world_size == 1:
        chosen = list(dict.fromkeys(case.reference for case in chosen))
    for case in chosen:
        history, model, trainer = train(case, own, TASKS[case.task], STEPS)
        assert_same_bits(own, trainer, case.name)
        assert_communicates_once(case, history, model, own)
        found[case.name] = result([step.loss for step in history.steps], params_of(trainer))
        found[case.name] |= numbers_of(history)
        is_of_library = case.mode in LIBRARY and own.world_size > 1
        if is_of_library and case.task != "tokens":  # whose loss is not a mean over samples
            losses, model = train_by_library(case, TASKS[case.task], STEPS)
            found[f"{case.name}{BY_LIBRARY}"] = result(losses, model.parameters())
    return found
