"""Compiled layers compute what they computed before, one after the other."""

import os

import pytest
import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig

from muster.errors import UsageError
from tests.train import workers
from train.loop.build import compile_layers
from train.sync.sharding.parts import repeated

CPU = torch.device("cpu")
TINY = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 32, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build():
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(BertConfig(**TINY))


def learn(model, lengths):
    """The losses of a few steps on batches of several lengths, and the parameters then."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for length in lengths:
        ids = torch.arange(4 * length).reshape(4, length) % 32
        loss = model(input_ids=ids, labels=torch.tensor([0, 1, 1, 0])).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    params = torch.cat([param.detach().flatten() for param in model.parameters()])
    return torch.tensor(losses), params


@pytest.mark.slow
def test_a_compiled_model_learns_the_same_under_the_same_names():
    plain, compiled = build(), build()
    compile_layers(compiled, CPU)
    names = list(plain.state_dict())
    for want, got in zip(learn(plain, (5, 9, 7)), learn(compiled, (5, 9, 7)), strict=True):
        torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-5)
    assert list(compiled.state_dict()) == names

    # The last layer's gradients are there before the first one's are made: they can travel by then.
    first, last = compiled.bert.encoder.layer
    seen = []
    last.output.dense.weight.register_post_accumulate_grad_hook(
        lambda _: seen.append(first.output.dense.weight.grad is None)
    )
    learn(compiled, (7,))
    assert seen == [True]


@pytest.fixture(scope="module")
def compiled_code(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled_code")


def run(folder, compiled_code, *flags):
    """Each step's loss of two workers that train the quickstart; what they compile is kept."""
    port = workers.free_port()
    place = ["--logs-dir", str(folder), "--run-id", "run", "--threads", "1", "--device", "cpu"]
    work = ["--task", "quickstart", "--dropout", "0", "--max-steps", "3", "--evaluate", "never"]
    env = {"TORCHINDUCTOR_CACHE_DIR": str(compiled_code)}
    all_flags = (*work, *place, "--no-save-model", *flags)
    started = [workers.start_by_hand(rank, 2, port, *all_flags, env=env) for rank in range(2)]
    for code, _, message in workers.finish(started, timeout_s=300):
        assert code == 0, message
    return workers.losses(folder / "run")


@pytest.mark.skipif("WHOLE_MATRIX" not in os.environ, reason="a worker compiles in test_gpu_check")
@pytest.mark.parametrize("mode", ["all_reduce", "ddp"])
def test_compiled_workers_have_the_losses_of_others(mode, tmp_path, compiled_code):
    plain = run(tmp_path / "plain", compiled_code, "--sync", mode)
    compiled = run(tmp_path / "compiled", compiled_code, "--sync", mode, "--compile")
    assert compiled == pytest.approx(plain, abs=2e-6)
    assert len(compiled) == 3 and compiled[0] != compiled[1]


def test_the_layers_that_repeat_are_found():
    model = build()
    assert repeated(model) == list(model.bert.encoder.layer)
    assert repeated(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
    assert repeated(nn.ModuleList([nn.Linear(2, 2), nn.ReLU()])) == []
    experts = nn.ModuleList(nn.ModuleList(nn.Linear(2, 2) for _ in range(2)) for _ in range(3))
    assert repeated(nn.Sequential(experts)) == list(experts)  # not those inside them again


def test_without_a_compiler_it_says_what_is_missing(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(UsageError, match=r"--compile needs a C\+\+ compiler.* no-such-compiler"):
        compile_layers(build(), CPU)
