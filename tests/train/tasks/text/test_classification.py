"""All nine tasks, from files in GLUE's real form to a loss and a metric."""

import pytest
import torch

from configs import plugins
from configs.settings.train import TrainConfig
from tests.train.tasks.text.made import FORMS, WORDS, build

pytestmark = pytest.mark.xdist_group("transformers")  # imported once for all of them

METRICS = {
    "cola": {"matthews_correlation"},
    "mrpc": {"accuracy", "f1"},
    "qqp": {"accuracy", "f1"},
    "stsb": {"pearson", "spearmanr"},
}


@pytest.mark.parametrize("name", FORMS)
def test_every_task_trains_and_is_scored(made, name):
    task = build(made, name)
    assert not task.is_prepared()
    task.prepare()
    assert task.is_prepared()
    train, evaluation = task.build_datasets()
    assert len(train) == 7
    assert list(evaluation) == (["", "mm"] if name == "mnli" else [""])
    assert {len(samples) for samples in evaluation.values()} == {5}
    model = task.build_model().eval()
    batch = task.collate([train[at] for at in range(7)])
    loss, logits = task.forward(model, batch)
    assert logits.shape == (7, {"mnli": 3, "stsb": 1}.get(name, 2))
    loss.backward()
    metric = task.metric(evaluation[""])
    batch = task.collate([evaluation[""][at] for at in range(5)])
    with torch.no_grad():
        metric.update(task.forward(model, batch).logits, batch["labels"], torch.arange(5))
    assert metric.compute().keys() == METRICS.get(name, {"accuracy"})


def test_labels_are_numbered_as_on_the_hub(made):
    numbers = {}
    for name in FORMS:
        task = build(made, name)
        task.prepare()
        numbers[name] = task.collate(list(task.build_datasets().train))["labels"].tolist()[:3]
    assert numbers["rte"] == numbers["qnli"] == [1, 0, 1]
    assert numbers["mnli"] == [1, 0, 2]
    assert numbers["wnli"] == [1, 0, 1]
    assert numbers["mrpc"] == numbers["cola"] == numbers["sst2"] == numbers["qqp"] == [0, 1, 0]
    assert numbers["stsb"] == [0, 3.25, 5]


def test_padding_leaves_loss_and_logits_as_they_are(made):
    found = []
    for pad in ("longest", "max_length"):
        task = build(made, pad=pad)
        task.prepare()
        torch.manual_seed(0)
        model = task.build_model().double().eval()
        batch = task.collate(list(task.build_datasets().train))
        found.append((batch["input_ids"].shape[1], task.forward(model, batch)))
    (short, one), (long, other) = found
    assert (short, long) == (15, 24)
    assert torch.allclose(one.loss, other.loss, atol=1e-12)
    assert torch.allclose(one.logits, other.logits, atol=1e-12)


@pytest.mark.parametrize("multiple", [1, 4])
def test_lengths_are_the_widths_of_samples_alone(made, multiple):
    task = build(made)
    task.pad_multiple = multiple
    task.prepare()
    for samples in (task.build_datasets().train, task.build_datasets().evaluation[""]):
        widths = [task.collate([one])["input_ids"].shape[1] for one in samples]
        assert task.lengths(samples).tolist() == widths
        assert task.collate(list(samples))["input_ids"].shape[1] == max(widths)
    assert len(set(widths)) > 1


def test_there_are_no_lengths_where_all_are_filled_up(made):
    task = build(made, pad="max_length")
    task.prepare()
    assert task.lengths(task.build_datasets().train) is None


def test_the_cache_is_used_again_until_anything_differs_and_is_mended(made):
    build(made).prepare()
    (path,) = (made / "cache").iterdir()
    before, whole = path.stat().st_mtime_ns, path.read_bytes()
    build(made).prepare()
    assert path.stat().st_mtime_ns == before
    path.write_bytes(whole[:-9])
    assert not build(made).is_prepared()
    build(made).prepare()
    assert path.read_bytes() == whole
    build(made, max_seq_length=20).prepare()
    (made / "vocab.txt").write_text("\n".join([*WORDS, "more"]))
    build(made).prepare()
    path = made / "rte" / "dev.tsv"
    path.write_text(path.read_text().replace("dog", "cat"))
    assert not build(made).is_prepared()
    build(made).prepare()
    assert len(list((made / "cache").iterdir())) == 4


def test_quickstart_needs_nothing_and_takes_what_is_given(tmp_path, made):
    build_it = plugins.load("train.tasks", "quickstart")
    task = build_it(TrainConfig(cache_dir=tmp_path / "cache"))
    assert not task.is_prepared()
    task.prepare()
    assert build_it(TrainConfig(cache_dir=tmp_path / "cache")).is_prepared()
    train, evaluation = task.build_datasets()
    assert (len(train), len(evaluation[""])) == (7040, 1000)
    batch = task.collate([train[at] for at in range(64)])
    assert 1 not in batch["input_ids"]  # [UNK]
    assert task.forward(task.build_model(), batch).logits.shape == (64, 2)
    other = build(made, "quickstart", data_dir=made / "rte")
    other.prepare()
    assert len(other.build_datasets().train) == 7
