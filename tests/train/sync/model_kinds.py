"""Models as people have them, small: each is a task that any sync mode must train exactly."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.train.matrix_tasks import MatrixTask, Mlp, Patchy, SmallBert
from train.tasks.base import Batch, Output

WIDTH, TOKENS, LONGEST = 8, 40, 8


class OfTokens(MatrixTask):
    """A class from token ids, (n, length)."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1}

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        ids = batch["input_ids"]  # as wide as the longest of a rank: these models take all in
        logits = model(functional.pad(ids, (0, LONGEST - ids.shape[1])))
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class OfPoints(Mlp):
    """A class from six numbers."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1}


class Checkpointed(nn.Module):
    """ALBERT's form: one layer used several times, its activations computed again."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last, self.reentrant = nn.Linear(WIDTH, 2), reentrant

    def forward(self, input_ids: Tensor) -> Tensor:
        values = self.words(input_ids)
        for _ in range(3):
            values = torch.tanh(checkpoint(self.layer, values, use_reentrant=self.reentrant))
        return self.last(values.mean(1))


class Reentrant(OfTokens):
    def network(self) -> nn.Module:
        return Checkpointed(reentrant=True)


class NonReentrant(OfTokens):
    def network(self) -> nn.Module:
        return Checkpointed(reentrant=False)


class Convolutions(OfPoints):
    """In channels_last, with the fused optimizer."""

    def network(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (2, 3, 1)),
            nn.Conv2d(2, 4, (2, 1)),
            nn.ReLU(),
            nn.Conv2d(4, 3, (2, 1)),
            nn.Flatten(),
            nn.Linear(3, 2),
        ).to(memory_format=torch.channels_last)


class TiedNetwork(nn.Module):
    """Word embedding and output layer are one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(input_ids).mean(1)))


class Tied(OfTokens):
    def network(self) -> nn.Module:
        return TiedNetwork()


class Mean(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.mean(1)


class Frozen(OfTokens):
    """A trained layer between two that are not."""

    def network(self) -> nn.Module:
        layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)]
        model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), Mean(), *layers)
        for part in (model[0], model[-1]):
            part.requires_grad_(False)
        return model


class Adapters(SmallBert):
    """A frozen BERT with LoRA and a head of its own, by peft."""

    optimizer = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1}

    def network(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        wanted = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
        return get_peft_model(super().network(), wanted)


class EmbeddingsOnly(OfTokens):
    def network(self) -> nn.Module:
        return nn.Sequential(nn.Embedding(TOKENS, 2), Mean())


class Masked(nn.Module):
    """Attention with constants as buffers: a causal mask of infinities, rotary frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, 2)
        mask = torch.full((LONGEST, LONGEST), float("-inf")).triu(1)
        self.register_buffer("mask", mask)
        self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, WIDTH) / WIDTH))

    def forward(self, input_ids: Tensor) -> Tensor:
        values = self.words(input_ids)
        rotated = values * (torch.arange(LONGEST)[:, None] * self.inv_freq).cos()
        scores = rotated @ rotated.transpose(1, 2) + self.mask
        return self.last((scores.softmax(-1) @ values).mean(1))


class ConstantBuffers(OfTokens):
    def network(self) -> nn.Module:
        return Masked()


class ComplexNetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, WIDTH, dtype=torch.complex64))
        self.alone = nn.Parameter(torch.randn(WIDTH, 2, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, points: Tensor) -> Tensor:
        values = torch.tanh(points.to(self.weight.dtype) @ self.weight)
        return (values @ self.alone).real * self.scale


class Complex(OfPoints):
    def network(self) -> nn.Module:
        return ComplexNetwork()


class WithModule(nn.Module):
    """It has a child of the name under which wrappers have what they wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, points: Tensor) -> Tensor:
        return self.last(torch.tanh(self.module(points)))


class ChildCalledModule(OfPoints):
    def network(self) -> nn.Module:
        return WithModule()


KINDS: dict[str, Any] = {
    "reentrant checkpointing": Reentrant,
    "checkpointing": NonReentrant,
    "channels_last": Convolutions,
    "tied embeddings": Tied,
    "frozen parts": Frozen,
    "adapters": Adapters,
    "embeddings only": EmbeddingsOnly,
    "constant buffers": ConstantBuffers,
    "complex": Complex,
    "a child called module": ChildCalledModule,
    "used on some ranks only": Patchy,
}
