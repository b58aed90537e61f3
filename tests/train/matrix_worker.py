"""One of N workers of one process group that trains every case of the equality matrix in turn.

Started by test_equality.py through torchrun: `matrix_worker.py OUTPUT_DIR`. Rank 0 writes
the losses and final parameters of every case; every rank checks that all ranks hold the same bits.
"""

import hashlib
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from configs.plugins import load
from configs.schema import ByHand, TrainConfig
from train import rendezvous, sparse_rows
from train.console import Console
from train.grad_sync import all_gather
from train.task import Batch, Datasets, Metric, Output, Samples, Task
from train.trainer import History, Trainer
from train.worker import end_process
from train.world import World

SAMPLES, BATCH = 60, 16  # the last batch of an epoch is cut: 12 samples
STEPS = {"bert": 100, "mlp": 100, "patchy": 50, "tokens": 50}
MODES = [
    *itertools.product(("gather_scatter", "all_reduce", "ddp"), (0.0, 0.01)),
    ("accelerate", 25.0),
]
SPLITS = {
    2: ["even", "5,3", "1,0"],
    3: ["even", "6,1,2", "0,1,1"],
    4: ["even", "8,1,4,3", "1,1,0,0"],
    5: ["even", "7,1,2,4,2", "0,3,0,1,0"],
}


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
        """Whether embeddings send the rows in use only."""
        return self.bucket_mb > 0 and self.mode in ("gather_scatter", "all_reduce")

    @property
    def reference(self) -> "Case":
        """What it must equal: one process, no accumulation, no split."""
        return replace(self, mode="single", bucket_mb=25.0, split="even", accumulation=1)


def cases(world_size: int) -> list[Case]:
    """The matrix at one number of ranks; at one rank, the references.

    In float64, where the tolerance is tightest, every mode and bucket form meets every split; in
    float32 each meets one split per number of ranks. The four ways to accumulate and clip rotate
    through them. WHOLE_MATRIX=1 crosses all with all.
    """
    ways = list(itertools.product((1, 3), (0.0, 0.05)))  # accumulation, clip
    splits = SPLITS[max(2, world_size)]
    found = []
    for numbers in itertools.product(*map(range, (len(TRAININGS), len(MODES), 3, len(ways)))):
        training, mode, split, way = numbers
        task, precision = TRAININGS[training]
        chosen = (sum(numbers) + world_size) % len(ways) == 0
        if precision == "fp32":
            chosen = chosen and (split + mode + world_size) % 3 == 0
        if chosen or "WHOLE_MATRIX" in os.environ:
            found.append(Case(task, precision, *MODES[mode], splits[split], *ways[way]))
    if world_size > 1:
        return found
    return list(dict.fromkeys(one.reference for n in SPLITS for one in cases(n)))


class Texts:
    """Token rows of different lengths with a label; the same on every rank."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(1, 40, (SAMPLES, 8), generator=generator)
        self.lengths = torch.randint(3, 9, (SAMPLES,), generator=generator)
        self.points = torch.randn(SAMPLES, 6, generator=generator)
        self.labels = torch.randint(2, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class MatrixTask(Task):
    """What the tasks of the matrix share: data in memory, cross entropy."""

    def __init__(self, config: TrainConfig) -> None:
        self.samples = Texts()

    def build_datasets(self) -> Datasets:
        return Datasets(self.samples, {})

    def lengths(self, samples: Samples) -> torch.Tensor:
        return self.samples.lengths

    def collate(self, samples: Sequence[int]) -> Batch:
        at = torch.tensor(samples)
        longest = int(self.samples.lengths[at].max())
        mask = (torch.arange(longest) < self.samples.lengths[at, None]).long()
        return {
            "input_ids": self.samples.tokens[at, :longest] * mask,
            "attention_mask": mask,
            "points": self.samples.points[at],
            "labels": self.samples.labels[at],
        }

    def metric(self, evaluation_set: Samples) -> Metric:
        raise NotImplementedError  # there is no evaluation


class SmallBert(MatrixTask):
    """A real BERT classifier, small."""

    optimizer = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}

    def build_model(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        return BertForSequenceClassification(
            BertConfig(
                vocab_size=40,
                hidden_size=16,
                num_hidden_layers=1,
                num_attention_heads=2,
                intermediate_size=24,
                max_position_embeddings=8,
            )
        )

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**inputs).logits
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class Mlp(MatrixTask):
    """A multilayer perceptron, SGD with momentum."""

    optimizer = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01}

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2))

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        logits = model(batch["points"])
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class TokensAndPoints(nn.Module):
    """A guess at each token's successor, and a class for the sample's point."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.sample = nn.Embedding(40, 40), nn.Linear(6, 2)

    def forward(
        self, input_ids: torch.Tensor, points: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.token(input_ids), self.sample(points)


class Tokens(Mlp):
    """A loss of two parts: the mean over some of the tokens, and the mean over samples."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3}
    loss_parts = ("token", "sample")

    def build_model(self) -> nn.Module:
        return TokensAndPoints()

    def units(self, batch: Batch) -> torch.Tensor:
        chosen = (batch["input_ids"] % 4 == 1).sum().item()  # in some parts of a batch none
        return torch.tensor([chosen, len(batch["labels"])], dtype=torch.float64)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        tokens, logits = model(batch["input_ids"], batch["points"])
        ids = batch["input_ids"]
        wanted = torch.where(ids % 4 == 1, (ids + 1) % 40, -100)
        total = functional.cross_entropy(tokens.flatten(0, 1), wanted.flatten(), reduction="sum")
        token = total / (wanted >= 0).sum().clamp(min=1)
        return Output(
            torch.stack([token, functional.cross_entropy(logits, batch["labels"])]), logits
        )


class Branches(nn.Module):
    """Parameters that are used always, for some samples only, by two layers, and never."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.rare = nn.Linear(6, 2)
        self.never = nn.Linear(6, 2)
        self.last = nn.Linear(6, 2)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.tied(torch.tanh(self.first(points))))
        logits = self.last(hidden)
        chosen = points[:, 0] > 1.2  # about one sample in nine, and in some batches none
        if chosen.any():
            extra = self.rare(hidden[chosen])
            logits = logits.index_add(0, chosen.nonzero().flatten(), extra)
        return logits


class Patchy(Mlp):
    """Some gradients are missing on some ranks, some on all; the optimizer would decay zeros."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3}

    def build_model(self) -> nn.Module:
        return Branches()


TASKS: dict[str, Any] = {"bert": SmallBert, "mlp": Mlp, "patchy": Patchy, "tokens": Tokens}
TRAININGS = [
    ("bert", "fp64"),
    ("bert", "fp32"),
    ("mlp", "fp32"),
    ("patchy", "fp64"),
    ("tokens", "fp64"),
]


class NoSinks:
    def write(self, record: object) -> None:
        pass

    def collectives(self, step: object, made: object) -> None:
        pass


def train(case: Case, world: World) -> tuple[History, nn.Module, Trainer]:
    task = TASKS[case.task]
    config = TrainConfig(
        task="synthetic",
        sync=case.mode,
        bucket_mb=case.bucket_mb,
        overlap=case.bucket_mb > 0,  # 0: as the courses write it
        sparse_rows=case.by_rows,
        split=case.split,
        accumulation=case.accumulation,
        max_grad_norm=case.clip,
        precision=case.precision,  # type: ignore[arg-type]
        dropout=0.0,
        length_balance=case.mode != "single",  # so that the references are cut without lengths
        batch_size=BATCH,
        epochs=25,
        max_steps=STEPS[case.task],
        warmup_steps=5,
        device="cpu",
        **task.optimizer,
    )
    trainer = Trainer(
        config,
        world,
        torch.device("cpu"),
        task(config),
        load("train.sync_modes", case.mode)(world, config),
        Console(speaks=False),
        NoSinks(),  # type: ignore[arg-type]
    )
    history = trainer.fit()
    return history, getattr(trainer.model, "module", trainer.model), trainer


def assert_same_bits(world: World, trainer: Trainer, case: Case) -> None:
    """Parameters, buffers and optimizer state are bitwise equal on all ranks."""
    digest = hashlib.sha256()
    for tensor in [*trainer.model.parameters(), *trainer.model.buffers(), *_states(trainer)]:
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    own = torch.tensor(list(digest.digest()[:16]), dtype=torch.uint8)
    digests = all_gather(world, own)
    assert (digests == own).all(), f"{case.name}: ranks differ: {digests.tolist()}"


def assert_communicates_once(case: Case, history: History, model: nn.Module) -> None:
    """Each step hands every gradient to the collectives once, however many micro-batches it has."""
    if case.task == "patchy":
        return  # some of its gradients are missing in some steps
    times = {"single": 0, "gather_scatter": 2}.get(case.mode, 1)  # gathered, then scattered
    want = times * sum(param.nbytes for param in model.parameters())
    found = {step.payload_bytes for step in history.steps}
    if case.by_rows and case.task in ("bert", "tokens"):
        rest = want - times * sum(
            module.weight.nbytes for module in model.modules() if isinstance(module, nn.Embedding)
        )
        assert rest < min(found) and max(found) < want, f"{case.name}: {found}: {rest} to {want}"
    else:
        assert found == {want}, f"{case.name}: payload {found}, not {want}"


def _states(trainer: Trainer) -> Iterator[torch.Tensor]:
    for param in trainer.model.parameters():
        state = trainer.optimizer.state.get(param, {})
        yield from (state[key] for key in sorted(state) if torch.is_tensor(state[key]))


def main() -> None:
    output = Path(sys.argv[1])
    torch.set_num_threads(1)
    sparse_rows.LEAST_BYTES = 0  # so that these small embeddings, too, go by rows
    found: dict[str, Any] = {}
    with rendezvous.meet(World.find(ByHand(), os.environ), "cpu", "gloo", 120) as peers:
        for case in cases(peers.world.world_size):
            history, model, trainer = train(case, peers.world)
            assert_same_bits(peers.world, trainer, case)
            assert_communicates_once(case, history, model)
            found[case.name] = {
                "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
                "params": torch.cat([p.detach().double().flatten() for p in model.parameters()]),
            }
        if peers.world.is_main:
            torch.save(found, output / f"ranks_{peers.world.world_size}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
