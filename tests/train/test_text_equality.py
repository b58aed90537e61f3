"""Losses that are means over words, hidden tokens and pairs do not depend on ranks or split."""

from pathlib import Path

import pytest
import torch

from configs.plugins import load
from configs.settings.train import TrainConfig
from tests.train.alone import settings
from tests.train.on_ranks import flat, trainer_of
from tests.train.tasks import conll
from tests.train.tasks.pretraining import made
from tests.train.tasks.text.made import small
from tests.train.workers import results_of
from train.sync.ranks import Ranks

pytestmark = pytest.mark.slow

TOLERANCE = 1e-9
# By data folder: data sets whose samples differ in their numbers of words and hidden tokens.
CASES = {"ner": {"task": "ner"}, "text": {"task": "bert"}, "shards": {"task": "bert"}}
SPLITS = {1: ["even"], 2: ["5,3", "0,1"], 3: ["4,1,2", "1,0,3"]}
STEPS = 5


def train(folder: Path, case: str, split: str, ranks: Ranks) -> dict[str, torch.Tensor]:
    alone = ranks.world_size == 1
    config: TrainConfig = settings(
        folder, data_dir=folder / case, sync="single" if alone else "ddp", split=split,
        accumulation=1 if alone else 2, length_balance=not alone, precision="fp64", dropout=0.0,
        batch_size=12, max_seq_length=24, train_samples=40, max_steps=STEPS, **CASES[case],
    )  # fmt: skip
    task = load("train.tasks", config.task)(config)
    if alone:
        task.prepare()  # for all later trainings
    trainer = trainer_of(config, ranks, task)
    history = trainer.fit()
    (scores,) = history.evaluations
    return {
        "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
        "scores": torch.tensor([scores.metrics[name] for name in sorted(scores.metrics)]),
        "params": flat(list(trainer.model.parameters())),
    }


def work(ranks: Ranks, folder: str) -> dict[str, dict[str, torch.Tensor]]:
    """Return the losses, scores and parameters of every case."""
    return {
        f"{case}|{split}": train(Path(folder), case, split, ranks)
        for case in CASES
        for split in SPLITS[ranks.world_size]
    }


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("equality")
    for name in CASES:
        (folder / name).mkdir()
    for name in ("train", "dev"):
        (folder / "ner" / f"{name}.txt").write_text(conll.TRAIN * 15)
    (folder / "text" / "train.txt").write_text(made.text(30).replace("w3 w3 w3 w3", "w3"))
    (folder / "text" / "valid.txt").write_text(made.text(5))
    made.one_token_shard(folder / "shards" / "0.h5", 30)
    made.one_token_shard(folder / "shards" / "test.h5", 7)
    words = dict.fromkeys([*made.VOCABULARY, *conll.WORDS[5:]])
    small(folder, words, {**made.MODEL, "vocab_size": 60})
    return {ranks: results_of(work, ranks, folder, str(folder))[0] for ranks in SPLITS}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_ranks_equal_one_process(losses, case, ranks):
    want = losses[1][f"{case}|even"]
    assert len(want["losses"]) == STEPS
    for split in SPLITS[ranks]:
        got = losses[ranks][f"{case}|{split}"]
        for what in ("losses", "params", "scores"):
            gap = (want[what] - got[what]).abs().max().item()
            limit = 1e-5 if what == "scores" else TOLERANCE  # sums of float32 logits
            assert gap <= limit, f"{case}, split {split}: {what} differ by {gap:.1e}"


def test_losses_of_text_cases_differ_by_more_than_the_tolerance(losses):
    """Otherwise, a training that did not happen would go unnoticed."""
    one = losses[1]
    assert one["ner|even"]["losses"][0] > one["ner|even"]["losses"][-1]
    assert not torch.allclose(one["text|even"]["losses"], one["shards|even"]["losses"], atol=1e-2)
