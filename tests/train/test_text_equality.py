"""Losses that are means over words, hidden tokens and pairs do not depend on ranks or split."""

import json

import pytest
import torch

from tests.train import text_worker
from tests.train.tasks import test_bert, test_ner
from tests.train.workers import run_on_ranks

TOLERANCE = 1e-9
CASES = ("ner", "text", "shards")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Losses, scores and parameters of every case at every number of ranks."""
    folder = tmp_path_factory.mktemp("equality")
    (folder / "cases.json").write_text(json.dumps(dict(zip(CASES, settings(folder), strict=True))))
    for ranks in text_worker.SPLITS:
        run_on_ranks(text_worker.__file__, ranks, str(folder))
    return {
        ranks: torch.load(folder / f"ranks_{ranks}.pt", weights_only=True)
        for ranks in text_worker.SPLITS
    }


def settings(folder):
    """Small sets whose samples differ in words and hidden tokens, and a small model for each."""
    common = {
        "cache_dir": str(folder / "cache"),
        "tokenizer": str(folder / "vocab.txt"),
        "model": str(folder / "config.json"),
        "batch_size": 12,
        "lr": 1e-2,
        "max_seq_length": 24,
    }
    for name in ("ner", "text", "shards"):
        (folder / name).mkdir()
    for name in ("train", "dev"):
        (folder / "ner" / f"{name}.txt").write_text(test_ner.TRAIN * 15)
    (folder / "text" / "train.txt").write_text(test_bert.text(30).replace("w3 w3 w3 w3", "w3"))
    (folder / "text" / "valid.txt").write_text(test_bert.text(5))
    test_bert.shard(folder / "shards" / "0.h5", 30)
    test_bert.shard(folder / "shards" / "test.h5", 7)
    words = [*test_bert.VOCABULARY, *test_ner.WORDS[5:]]
    (folder / "vocab.txt").write_text("\n".join(dict.fromkeys(words)))
    (folder / "config.json").write_text(json.dumps({**test_bert.MODEL, "vocab_size": 60}))
    yield {**common, "task": "ner", "data_dir": str(folder / "ner")}
    yield {**common, "task": "bert", "data_dir": str(folder / "text"), "train_samples": 40}
    yield {**common, "task": "bert", "data_dir": str(folder / "shards")}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_uneven_ranks_equal_one_process(found, case, ranks):
    want = found[1][f"{case}|even"]
    assert len(want["losses"]) == text_worker.STEPS
    for split in text_worker.SPLITS[ranks]:
        got = found[ranks][f"{case}|{split}"]
        for what in ("losses", "params", "scores"):
            gap = (want[what] - got[what]).abs().max().item()
            limit = 1e-5 if what == "scores" else TOLERANCE  # sums of float32 logits
            assert gap <= limit, f"{case}, split {split}: {what} differ by {gap:.1e}"


def test_the_cases_are_worlds_apart(found):
    """So that a training that did not happen would be seen."""
    one = found[1]
    assert one["ner|even"]["losses"][0] > one["ner|even"]["losses"][-1]
    assert not torch.allclose(one["text|even"]["losses"], one["shards|even"]["losses"], atol=1e-2)
