"""BSC's benchmark needs nothing on disk: samples are drawn in emotion's shape, as many as asked."""

import json

import pytest
import torch

from muster.errors import UsageError
from tests.train import alone
from tests.train.tasks.text.made import DISTILBERT
from train.tasks import bsc_benchmark
from train.tasks.bsc_benchmark import draw

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

MODEL = {**DISTILBERT, "vocab_size": 1200, "max_position_embeddings": 128}


def config_of(tmp_path, **settings):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    base = {"task": "bsc_benchmark", "train_samples": 96, "eval_samples": 40, "epochs": 1}
    own = {"data_dir": None, "tokenizer": None, "evaluate": "epoch", "batch_size": 32}
    return alone.settings(tmp_path, **{**base, **own, **settings})


def lengths(samples):
    return torch.tensor([len(samples[at]["input_ids"]) for at in range(len(samples))])


def test_it_trains_and_evaluates_as_many_samples_as_asked(tmp_path):
    history, trainer = alone.train(config_of(tmp_path), tmp_path)
    assert [step.samples for step in history.steps] == [32, 32, 32]
    assert [one.samples for one in history.evaluations] == [40]
    assert {step.local_tokens % 8 for step in history.steps} == {0}
    longest = int(lengths(trainer.task.build_datasets().train).max())
    assert all(0 < step.local_tokens < 0.8 * 32 * longest for step in history.steps)
    assert set(tmp_path.iterdir()) == {tmp_path / "config.json", tmp_path / "run"}


def test_the_samples_have_the_lengths_of_emotions():
    found = lengths(draw(4000, 30522, 128, seed=1)).float()
    assert found.mean().item() == pytest.approx(22.3, abs=0.7)
    assert found.median().item() == pytest.approx(20, abs=1)
    assert found.min() == 4 and 70 <= found.max() <= 87
    assert lengths(draw(4000, 30522, 16, seed=1)).max() == 16


def test_a_sample_is_words_between_its_marks_and_tells_its_label():
    samples = draw(50, 1200, 128, seed=3)
    for at in range(50):
        tokens, label = samples[at]["input_ids"], samples[at]["label"]
        assert (tokens[0], tokens[-1]) == (101, 102)
        assert all(999 <= token < 1200 for token in tokens[1:-1])
        assert label == tokens[1] % 6


def test_the_same_seed_draws_the_same_and_the_two_sets_differ(tmp_path):
    task = bsc_benchmark.build(config_of(tmp_path, train_samples=40))
    train, evaluation = task.build_datasets()
    again = bsc_benchmark.build(config_of(tmp_path, train_samples=40)).build_datasets().train
    assert train[7] == again[7]
    assert lengths(train).tolist() != lengths(evaluation[""]).tolist()


def test_the_studys_sizes_are_the_default(tmp_path):
    config = config_of(tmp_path, train_samples=None, eval_samples=None)
    train, evaluation = bsc_benchmark.build(config).build_datasets()
    assert (len(train), len(evaluation[""])) == (32768, 131072)


def test_a_model_that_cannot_take_the_samples_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--max-seq-length 256 is more than the 128 positions"):
        bsc_benchmark.build(config_of(tmp_path, max_seq_length=256)).prepare()
    (tmp_path / "small.json").write_text(json.dumps({**MODEL, "vocab_size": 256}))
    with pytest.raises(UsageError, match=r"knows 256 tokens, but the benchmark's words begin at"):
        bsc_benchmark.build(config_of(tmp_path, model=str(tmp_path / "small.json"))).prepare()
