"""One of two ranks that use `muster.sync` as scripts use DDP: `synced_model_worker.py MODE`."""

import copy
import sys
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import muster
from train.worker import end_process


class Net(nn.Module):
    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(3000, 96), nn.BatchNorm1d(16)
        self.first, self.second = nn.Linear(96, 16), nn.Linear(16, 3)
        self.reentrant = reentrant
        self.name_of_mine = "mine"

    def forward(self, tokens: torch.Tensor) -> dict[str, Any]:
        found = self.norm(self.first(self.embedding(tokens).mean(1)))
        if self.reentrant is None:
            return {"scores": (self.second(found), "text")}
        return {"scores": (checkpoint(self.second, found, use_reentrant=self.reentrant), "text")}


def net(**options: Any) -> Net:
    torch.manual_seed(dist.get_rank())  # whose weights rank 0's take the place of
    return Net(**options).double()


def tokens(seed: int) -> torch.Tensor:
    return torch.randint(0, 3000, (4, 5), generator=torch.Generator().manual_seed(seed))


def loss_of(model: nn.Module, seed: int) -> torch.Tensor:
    return model(tokens(2 * seed + dist.get_rank()))["scores"][0].square().mean()


def mean_gradients(plain: nn.Module, *seeds: int) -> list[torch.Tensor]:
    """By hand: the mean over ranks of what a plain model has after these passes."""
    plain.zero_grad()
    for seed in seeds:
        loss_of(plain, seed).backward()
    for param in plain.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()
    return [param.grad.clone() for param in plain.parameters()]


def assert_are(model: nn.Module, wanted: list[torch.Tensor]) -> None:
    for (name, param), want in zip(model.named_parameters(), wanted, strict=True):
        assert torch.allclose(param.grad, want, rtol=1e-12, atol=1e-15), name
        every = [torch.empty_like(want) for _ in range(2)]
        dist.all_gather(every, param.grad)
        assert torch.equal(*every), name
    model.zero_grad()


def pair(mode: str, **options: Any) -> tuple[Any, nn.Module]:
    model = muster.sync(net(**options), mode)
    return model, copy.deepcopy(model.module)


def passes(mode: str) -> None:
    model, plain = pair(mode)
    for seed in range(3):
        loss_of(model, seed).backward()
        assert_are(model, mean_gradients(plain, seed))
    with model.no_sync():
        loss_of(model, 3).backward()
    loss_of(model, 4).backward()
    assert_are(model, mean_gradients(plain, 3, 4))
    for seed in (5, 6, 7):  # as nanoGPT does it
        model.require_backward_grad_sync = seed == 7
        loss_of(model, seed).backward()
    assert_are(model, mean_gradients(plain, 5, 6, 7))
    if mode != "ddp":  # torch's engine does neither
        loss_of(model, 8).backward()
        loss_of(model, 9).backward()  # of a mean and of something local
        assert_are(model, mean_gradients(plain, 8, 9))
        loss = loss_of(model, 8)
        loss.backward(retain_graph=True)
        loss.backward()
        assert_are(model, mean_gradients(plain, 8, 8))


def after_a_failure(mode: str) -> None:
    """A pass that fails before any gradient is there does not stand in the way of the next."""
    model, plain = pair(mode)
    scores = model(tokens(0))["scores"][0]
    scores.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scores.sum().backward()
    model.zero_grad()
    loss_of(plain, 0)  # its running statistics have seen those, too
    loss_of(model, 1).backward()
    assert_are(model, mean_gradients(plain, 1))


def checkpointed(mode: str) -> None:
    for reentrant in (False,) if mode == "ddp" else (False, True):  # which torch's refuses
        model, plain = pair(mode, reentrant=reentrant)
        for seed in range(3):
            loss_of(model, seed).backward()
            assert_are(model, mean_gradients(plain, seed))


def buffers(mode: str) -> None:
    model, plain = pair(mode)
    loss_of(model, 0).backward()
    loss_of(plain, 0)
    want = plain.norm.running_mean.clone()
    dist.all_reduce(want)
    assert torch.allclose(model.norm.running_mean, want / 2, rtol=1e-12)


def names(mode: str) -> None:
    model, _ = pair(mode)
    assert model.name_of_mine == "mine"
    assert list(model.state_dict()) == list(model.module.state_dict())
    as_ddp = muster.sync(net(), mode, ddp_prefix=True)
    assert list(as_ddp.state_dict()) == [f"module.{name}" for name in model.state_dict()]
    for saved in (model.state_dict(), as_ddp.state_dict()):
        for one in (model, as_ddp):
            one.load_state_dict(saved)
            held = nn.Sequential(one)
            held.load_state_dict({f"0.{name}": value for name, value in saved.items()})
            assert torch.equal(one.second.bias, next(reversed(list(saved.values()))))
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})


def refusals(mode: str) -> None:
    rank = dist.get_rank()
    with pytest.raises(muster.UsageError, match=r"model of rank 1 \(2 parameters\)"):
        muster.sync(nn.Linear(3, 4 + rank), mode)
    with pytest.raises(muster.UsageError, match="unknown mode 'fast'; known: all_reduce, ddp"):
        muster.sync(nn.Linear(3, 4), "fast")
    with pytest.raises(muster.UsageError, match="world_size is 2"):
        muster.sync(nn.Linear(3, 4), "single")
    with pytest.raises(muster.UsageError, match="no parameter"):
        muster.sync(nn.ReLU(), mode)


def compressed(mode: str) -> None:
    if mode == "gather_scatter":
        return
    model = muster.sync(net(), mode, compress="bf16")
    plain = copy.deepcopy(model.module)
    loss_of(model, 0).backward()
    for param, want in zip(model.parameters(), mean_gradients(plain, 0), strict=True):
        assert (param.grad - want).norm() <= 2e-2 * want.norm() + 1e-9


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for part in (passes, checkpointed, buffers, names, refusals, compressed):
        part(sys.argv[1])
    if sys.argv[1] != "ddp":  # torch's engine does not get over it
        after_a_failure(sys.argv[1])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_process(0)
