"""The equality matrix's tasks: small networks whose gradients arrive in every possible way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from configs.settings.train import TrainConfig
from train.tasks.base import Batch, Datasets, Metric, Output, Samples, Task

SAMPLES = 60


class Texts:
    """Token rows of different lengths with a label; the same on every rank."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.tokens = torch.randint(1, 40, (SAMPLES, 8), generator=generator)
        self.lengths = torch.randint(3, 9, (SAMPLES,), generator=generator)
        self.points = torch.randn(SAMPLES, 6, generator=generator)
        self.labels = torch.randint(2, (SAMPLES,), generator=generator)


class MatrixTask(Task):
    """The common part of the matrix's tasks: data in memory, cross entropy."""

    def __init__(self, config: TrainConfig, rank: int = 0) -> None:
        self.samples, self.rank = Texts(), rank

    def network(self) -> nn.Module:
        raise NotImplementedError

    def build_model(self) -> nn.Module:
        if self.rank:  # not the weights of rank 0: the mode must make them equal
            torch.manual_seed(self.rank)
        return self.network()

    def build_datasets(self) -> Datasets:
        return Datasets(range(len(self.samples.labels)), {})  # type: ignore[arg-type]

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

    def network(self) -> nn.Module:
        from transformers import BertConfig, BertForSequenceClassification

        config = BertConfig(
            vocab_size=40, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=8,
        )  # fmt: skip
        return BertForSequenceClassification(config)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        logits = model(**inputs).logits
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class Mlp(MatrixTask):
    """A multilayer perceptron, SGD with momentum."""

    optimizer = {"optimizer": "sgd", "lr": 0.05, "weight_decay": 0.01}

    def network(self) -> nn.Module:
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

    def network(self) -> nn.Module:
        return TokensAndPoints()

    def units(self, batch: Batch) -> torch.Tensor:
        chosen = (batch["input_ids"] % 4 == 1).sum().item()  # none in some parts of a batch
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
        chosen = points[:, 0] > 1.2  # about one sample in nine, and none in some batches
        if chosen.any():
            extra = self.rare(hidden[chosen])
            logits = logits.index_add(0, chosen.nonzero().flatten(), extra)
        return logits


class Patchy(Mlp):
    """Some gradients are missing on some ranks, some on all; the optimizer would decay zeros."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3}

    def network(self) -> nn.Module:
        return Branches()


TASKS: dict[str, Any] = {"bert": SmallBert, "mlp": Mlp, "patchy": Patchy, "tokens": Tokens}
