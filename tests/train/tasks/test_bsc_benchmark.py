"""BSC's benchmark needs no data files: it draws as many samples as asked, shaped like emotion's."""

import json

import pytest
import torch

from tests.train.tasks.text import made
from train.tasks.bsc_benchmark import draw

MODEL = {"model_type": "distilbert", "vocab_size": 1200, "dim": 16, "hidden_dim": 32}
MODEL |= {"n_layers": 1, "n_heads": 2, "max_position_embeddings": 128}
# For one training and one evaluation, unless a test changes them.
SETTINGS = {"train_samples": 96, "eval_samples": 40, "epochs": 1, "batch_size": 32}
SETTINGS |= {"data_dir": None, "tokenizer": None, "max_seq_length": 128}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    return tmp_path


def lengths(samples):
    return torch.tensor([len(samples[at]["input_ids"]) for at in range(len(samples))])


def test_bsc_benchmark_trains_on_as_many_samples_as_set(folder):
    history, trainer = made.trained(folder, "bsc_benchmark", **SETTINGS)
    assert [step.samples for step in history.steps] == [32, 32, 32]
    assert [one.samples for one in history.evaluations] == [40]
    assert {step.local_tokens % 8 for step in history.steps} == {0}
    longest = int(lengths(trainer.task.build_datasets().train).max())
    assert all(0 < step.local_tokens < 0.8 * 32 * longest for step in history.steps)
    assert set(folder.iterdir()) == {folder / "config.json", folder / "run"}


def test_drawn_samples_have_the_lengths_of_emotion():
    found = lengths(draw(4000, 30522, 128, seed=1)).float()
    assert found.mean().item() == pytest.approx(22.3, abs=0.7)
    assert found.median().item() == pytest.approx(20, abs=1)
    assert found.min() == 4 and 70 <= found.max() <= 87
    assert lengths(draw(4000, 30522, 16, seed=1)).max() == 16


def test_drawn_sample_has_marks_and_label_of_first_word():
    samples = draw(50, 1200, 128, seed=3)
    for at in range(50):
        tokens, label = samples[at]["input_ids"], samples[at]["label"]
        assert (tokens[0], tokens[-1]) == (101, 102)
        assert all(999 <= token < 1200 for token in tokens[1:-1])
        assert label == tokens[1] % 6


def test_default_sizes_are_those_of_the_study_and_draws_repeat(folder):
    settings = {**SETTINGS, "train_samples": None, "eval_samples": None}
    train, evaluation = made.build(folder, "bsc_benchmark", **settings).build_datasets()
    assert (len(train), len(evaluation[""])) == (32768, 131072)
    again = made.build(folder, "bsc_benchmark", **settings).build_datasets().train
    assert train[7] == again[7] and train[7] != evaluation[""][7]


def test_tokenizer_that_only_pads_is_not_saved_with_the_model(folder):
    assert made.build(folder, "bsc_benchmark", **SETTINGS).tokens() is None
    made.small(folder, made.WORDS, MODEL)
    assert len(made.build(folder, "bsc_benchmark", **SETTINGS).tokens()) == len(made.WORDS)


def test_model_with_too_few_positions_or_tokens_is_refused(folder):
    found = made.refusal(folder, "bsc_benchmark", **{**SETTINGS, "max_seq_length": 256})
    assert "--max-seq-length 256 is longer than the 128 positions" in found
    (folder / "config.json").write_text(json.dumps({**MODEL, "vocab_size": 256}))
    found = made.refusal(folder, "bsc_benchmark", **SETTINGS)
    assert " 256 tokens, but the benchmark's words begin at" in found
