"""A model whose ranks would drift apart is reported when its training starts."""

import warnings
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import muster
from tests.train.retained import CONFIG, run
from tests.train.workers import results_of
from train.sync import drift
from train.tasks.synthetic import Synthetic

WORDS = "max_norm of 0: "


def network() -> nn.Module:
    return nn.Sequential(nn.Embedding(4, 8, max_norm=1.0), nn.Linear(8, 2))


class Embedded(Synthetic):
    def build_model(self):
        return network()

    def forward(self, model, batch):
        return super().forward(model, {**batch, "features": batch["labels"]})


def noted(ranks, folder):
    """Return the notes of a user's loop, the trainer's lines, and whether the ranks are equal."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = muster.sync(network())
    model(torch.tensor([ranks.rank, 2])).sum().backward()
    config = replace(CONFIG, sync="ddp", max_steps=2)
    _, lines = run(config, Path(folder, "run"), task=Embedded(config), ranks=ranks)
    notes = [str(warning.message) for warning in caught if __file__ == warning.filename]
    weight = model.module[0].weight.detach().flatten()
    return notes, lines, bool((ranks.all_gather(weight) == weight).all())


def test_max_norm_embedding_is_named_by_trainer_and_library(tmp_path):
    (notes, lines, is_equal), (other, _, _) = results_of(noted, 2, tmp_path, str(tmp_path))
    assert len(notes) == 1 and notes[0].startswith(f"muster.sync: {WORDS}")
    assert other == []  # only rank 0 warns
    assert any(line.startswith(WORDS) for line in lines)
    assert not is_equal  # otherwise the note would be obsolete


def test_other_models_have_no_note():
    assert drift.note(nn.Sequential(nn.Embedding(4, 2), nn.EmbeddingBag(4, 2))) == ""
