"""Compiled layers give the same results as before, and still run one after the other."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.matrix_tasks import SmallBert
from tests.train.on_ranks import flat, trainer_of
from tests.train.workers import results_of
from train.loop.build import compile_layers
from train.sync.ranks import Ranks

CONFIG = TrainConfig(task="synthetic", sync="all_reduce", batch_size=16, max_steps=3, dropout=0.0)


class TwoLayers(SmallBert):
    def network(self) -> nn.Module:
        sizes = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": 40}
        return BertForSequenceClassification(
            BertConfig(num_hidden_layers=2, num_attention_heads=2, **sizes)
        )


def trained(ranks: Ranks, *, compiles: bool) -> tuple[list[str], list[float], torch.Tensor, set]:
    """Return names, losses, parameters, and whether the last layer's gradients come first."""
    config = replace(CONFIG, compile=compiles)
    trainer = trainer_of(config, ranks, TwoLayers(config, ranks.rank))
    model, orders = trainer.state.model, set[bool]()
    first, last = (one.output.dense.weight for one in model.bert.encoder.layer)
    last.register_post_accumulate_grad_hook(lambda _: orders.add(first.grad is None))
    losses = [step.loss for step in trainer.fit().steps]
    return list(model.state_dict()), losses, flat(list(model.parameters())), orders


def gaps(ranks: Ranks) -> list[float]:
    """Return how much compiling changes the losses and the parameters."""
    plain, compiled = (trained(ranks, compiles=one) for one in (False, True))
    assert compiled[0] == plain[0]
    # the last layer's gradients exist before the first layer's, so they can be sent early
    assert compiled[3] == {True}
    assert len(plain[1]) == 3 and plain[1][0] != plain[1][1]
    return [
        (torch.as_tensor(compiled[at]) - torch.as_tensor(plain[at])).abs().max() for at in (1, 2)
    ]


@pytest.mark.slow
@pytest.mark.needs("g++", "Python.h")
def test_compiled_model_has_the_same_losses_and_names(tmp_path):
    for found in results_of(gaps, 2, tmp_path, timeout_s=840):
        assert max(found) < 2e-6


@pytest.mark.parametrize(("device", "threads"), [("cuda", 3), ("cpu", 1)])
def test_gpu_kernels_are_compiled_by_all_cores_of_worker(device, threads, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr("train.loop.build.shutil.which", lambda name: name)
    with torch._inductor.config.patch(compile_threads=7):
        compile_layers(nn.Linear(1, 1), torch.device(device))  # it compiles at its first call
        assert torch._inductor.config.compile_threads == threads


def test_missing_compiler_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"--compile needs a C\+\+ compiler.* no-such-compiler"):
        compile_layers(nn.Linear(1, 1), torch.device("cpu"))
