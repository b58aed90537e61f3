"""Small versions of common models: each is a task that any sync mode must train exactly."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.train.matrix_tasks import MatrixTask, Mlp, Patchy, SmallBert
from train.tasks.base import Batch, Output

WIDTH, TOKENS, LONGEST = 8, 40, 8
ADAMW = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.1}


class OfTokens(MatrixTask):
    """A class from token ids, (n, length)."""

    optimizer = ADAMW

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        ids = batch["input_ids"]  # as wide as a rank's longest row: these models need full width
        logits = model(functional.pad(ids, (0, LONGEST - ids.shape[1])))
        return Output(functional.cross_entropy(logits, batch["labels"]), logits)


class OfPoints(Mlp):
    """A class from six numbers."""

    optimizer = ADAMW


class Checkpointed(nn.Module):
    """Like ALBERT: one layer is used several times, and its activations are computed again."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.words, self.layer = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.last, self.reentrant = nn.Linear(WIDTH, 2), reentrant

    def forward(self, input_ids: Tensor) -> Tensor:
        values = self.words(input_ids)
        for _ in range(3):
            values = torch.tanh(checkpoint(self.layer, values, use_reentrant=self.reentrant))
        return self.last(values.mean(1))


def convolutions() -> nn.Module:
    """Return convolutions in channels_last, which are trained with the fused optimizer."""
    return nn.Sequential(
        nn.Unflatten(1, (2, 3, 1)),
        nn.Conv2d(2, 4, (2, 1)),
        nn.ReLU(),
        nn.Conv2d(4, 3, (2, 1)),
        nn.Flatten(),
        nn.Linear(3, 2),
    ).to(memory_format=torch.channels_last)


class TiedNetwork(nn.Module):
    """Word embedding and output layer share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(input_ids).mean(1)))


class Mean(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.mean(1)


def frozen() -> nn.Module:
    """Return a model with a trained layer between two frozen ones."""
    layers = [nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2)]
    model = nn.Sequential(nn.Embedding(TOKENS, WIDTH), Mean(), *layers)
    for part in (model[0], model[-1]):
        part.requires_grad_(False)
    return model


class Adapters(SmallBert):
    """A frozen BERT with LoRA and a head of its own, by peft."""

    optimizer = ADAMW

    def network(self) -> nn.Module:
        from peft import LoraConfig, get_peft_model

        wanted = LoraConfig(r=2, target_modules=["query", "value"], modules_to_save=["classifier"])
        return get_peft_model(super().network(), wanted)


class Masked(nn.Module):
    """Constants with infinities and odd numbers, a running mean, and a cache that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("mask", torch.full((6, 6), -torch.inf).triu(1))
        self.register_buffer("frequencies", 10000 ** -(torch.arange(6) / 6))
        self.register_buffer("turns", torch.polar(torch.ones(6), torch.arange(6) / 7))
        self.register_buffer("running", torch.zeros(6))
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("places", torch.zeros(0))

    def forward(self, points: Tensor) -> Tensor:
        if self.training:
            self.running.data.lerp_(points.mean(0), 0.1)  # behind autograd's version counter
            self.steps += 1
        if len(points) > len(self.places):
            self.register_buffer("places", torch.arange(len(points)).to(points))
        scores = points[:, :, None] * points[:, None, :] * self.frequencies + self.mask
        mixed = scores.softmax(-1) @ points[:, :, None]
        turned = (mixed[..., 0] * self.turns).imag
        return self.layer(turned) + 1e-3 * self.places[: len(points), None]


class ChangingNetwork(nn.Module):
    """One part is frozen for some steps; another is used only in some steps, but not the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.calls = 0

    def forward(self, points: Tensor) -> Tensor:
        self.calls += self.training
        self.first.requires_grad_(not 3 <= self.calls < 6)
        hidden = torch.tanh(self.first(points))
        if self.calls % 4 != 1:
            hidden = torch.tanh(self.second(hidden))
        return self.head(hidden)


class HalvesNetwork(nn.Module):
    """A frozen part and a trained part in bfloat16, and a part in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.low = nn.Linear(6, 24).bfloat16(), nn.Linear(24, 24).bfloat16()
        self.frozen.requires_grad_(requires_grad=False)
        self.head = nn.Linear(24, 2)

    def forward(self, points: Tensor) -> Tensor:
        hidden = torch.tanh(self.low(torch.tanh(self.frozen(points.bfloat16()))))
        return self.head(hidden.float())


class Broken(Mlp):
    """The gradient of rank 1 becomes infinite in step 3."""

    calls = 0

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        output = super().forward(model, batch)
        self.calls += 1
        if self.rank == 1 and self.calls == 3:
            output.loss.register_hook(lambda grad: grad * torch.inf)
        return output


class WithModule(nn.Module):
    """It has a child with the name that wrappers give to the module that they wrap."""

    def __init__(self) -> None:
        super().__init__()
        self.module, self.last = nn.Linear(6, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, points: Tensor) -> Tensor:
        return self.last(torch.tanh(self.module(points)))


def of(kind: type[MatrixTask], network: Callable[[], nn.Module], **more: Any) -> type[MatrixTask]:
    """Return a task of that kind with that network."""
    return type(kind.__name__, (kind,), {"network": lambda _: network(), **more})


# Frozen or unused parameters are not decayed: their gradients are None on every rank.
DECAYS = {"optimizer": "adamw", "lr": 1e-2, "weight_decay": 0.3}
Changing = of(OfPoints, ChangingNetwork, optimizer=DECAYS)
Halves = of(OfPoints, HalvesNetwork, optimizer={"optimizer": "adamw", "lr": 1e-3})
KINDS: dict[str, Any] = {
    "reentrant checkpointing": of(OfTokens, lambda: Checkpointed(reentrant=True)),
    "checkpointing": of(OfTokens, lambda: Checkpointed(reentrant=False)),
    "channels_last": of(OfPoints, convolutions),
    "tied embeddings": of(OfTokens, TiedNetwork),
    "frozen parts": of(OfTokens, frozen),
    "adapters": Adapters,
    "embeddings only": of(OfTokens, lambda: nn.Sequential(nn.Embedding(TOKENS, 2), Mean())),
    "buffers of all kinds": of(OfPoints, Masked),
    "changing": Changing,
    "a child called module": of(OfPoints, WithModule),
    "used on some ranks only": Patchy,
}
