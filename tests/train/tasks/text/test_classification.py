"""GLUE's nine tasks and emotion, from files in their real format to a loss and a metric.

The files are read with all their quirks; errors name the file and line.
"""

from dataclasses import replace
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory

import pytest
import torch
from hypothesis import strategies as st

from configs import plugins
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.fuzzing import fuzzed
from tests.train.tasks.text.made import (
    FORMS,
    WORDS,
    build,
    pads_agree,
    prepared,
    refusal,
    rows,
    small,
)
from train.loop.evaluation import lengths_of
from train.tasks.sources.files import refuse_stand_in
from train.tasks.text import classification

METRICS = {
    "cola": {"matthews_correlation"},
    "mrpc": {"accuracy", "f1"},
    "qqp": {"accuracy", "f1"},
    "stsb": {"pearson", "spearmanr"},
}
# Of the first three samples, as on the Hub.
LABELS = {"mnli": [1, 0, 2], "stsb": [0, 3.25, 5]}
LABELS |= {name: [1, 0, 1] for name in ("rte", "qnli", "wnli")}


@pytest.mark.parametrize("name", FORMS)
def test_every_text_task_trains_and_has_its_metrics(glue, name):
    assert not build(glue, name).is_prepared()
    task = prepared(glue, name)
    train, evaluation = task.build_datasets()
    assert list(evaluation) == {"mnli": ["", "mm"], "emotion": ["val", "test"]}.get(name, [""])
    assert {len(samples) for samples in evaluation.values()} == {5}
    model = task.build_model().eval()
    batch = task.collate(list(train))
    assert batch["labels"].tolist()[:3] == LABELS.get(name, [0, 1, 0])
    loss, logits = task.forward(model, batch)
    assert logits.shape == (7, {"mnli": 3, "stsb": 1, "emotion": 6}.get(name, 2))
    loss.backward()
    samples = next(iter(evaluation.values()))
    metric, batch = task.metric(samples), task.collate(list(samples))
    assert batch["input_ids"].shape[1] % {"emotion": 8}.get(name, 1) == 0
    with torch.no_grad():
        metric.update(task.forward(model, batch).logits, batch["labels"], torch.arange(5))
    assert metric.compute().keys() == METRICS.get(name, {"accuracy"})


def test_padding_does_not_change_loss_and_logits(glue):
    assert pads_agree(glue, "rte")


@pytest.mark.parametrize("multiple", [1, 4])
def test_lengths_are_those_of_samples_collated_alone(glue, multiple):
    task = prepared(glue)
    task.pad_multiple = multiple
    for samples in (task.build_datasets().train, task.build_datasets().evaluation[""]):
        widths = [task.collate([one])["input_ids"].shape[1] for one in samples]
        assert task.lengths(samples).tolist() == widths
        assert task.collate(list(samples))["input_ids"].shape[1] == max(widths)
    assert len(set(widths)) > 1
    full = prepared(glue, pad="max_length")  # no lengths if all are padded to the maximum
    assert lengths_of(full, full.build_datasets().train) == []


def test_cache_of_tokens_is_used_until_settings_or_files_change(glue):
    prepared(glue)
    (path,) = (glue / "cache").iterdir()
    before, whole = path.stat().st_mtime_ns, path.read_bytes()
    prepared(glue)
    assert path.stat().st_mtime_ns == before
    path.write_bytes(whole[:-9])
    assert not build(glue).is_prepared()
    prepared(glue)
    assert path.read_bytes() == whole
    prepared(glue, max_seq_length=20)
    small(glue, [*WORDS, "more"])
    prepared(glue)
    path = glue / "rte" / "dev.tsv"
    path.write_text(path.read_text().replace("dog", "cat"))
    assert not build(glue).is_prepared()
    prepared(glue)
    assert len(list((glue / "cache").iterdir())) == 4


def test_cache_of_another_label_order_is_not_used(glue):
    task = prepared(glue)
    other = replace(task.spec, labels=tuple(reversed(task.spec.labels)))
    assert not classification.GlueTask(other, task.config).is_prepared()


def test_quickstart_trains_on_generated_or_given_text(tmp_path, glue):
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
    other = prepared(glue, "quickstart", data_dir=glue / "rte")
    assert len(other.build_datasets().train) == 7


RTE = "index\tsentence1\tsentence2\tlabel\n"
GOOD = "0\ta\tb\tentailment\n"
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
STSB = "index\tsentence1\tsentence2\tscore\n"


def read(tmp_path, text, task="rte"):
    path = tmp_path / "train.tsv"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    spec = plugins.load("train.tasks", task)(TrainConfig(task=task)).spec
    return classification.read(spec, path)


ODD = "a\x0b\x0c\x1c\x85\u2028\ra"  # only a newline ends a line


@pytest.mark.parametrize(
    ("task", "text", "texts"),
    [
        ("rte", f'{RTE}0\tHe said "no.\tNo" was.\tentailment', ['He said "no.', 'No" was.']),
        ("rte", "\ufeff" + (RTE + GOOD).replace("\n", "\r\n") + "\r\n", ["a", "b"]),
        ("rte", f"{RTE}0\t{ODD}\tb\tentailment\n", [ODD, "b"]),
        # the text ends at the last separator, and a header is optional
        ("emotion", "i feel; and so;sadness\r\n\r\n", ["i feel; and so"]),
        ("emotion", "\ufefftext;label_name\r\ni feel;sadness\n", ["i feel"]),
    ],
)
def test_tsv_with_quotes_bom_crlf_and_odd_blanks_is_read(tmp_path, task, text, texts):
    assert read(tmp_path, text, task) == (tuple([one] for one in texts), [0])


def test_qqp_rows_without_all_fields_are_left_out_and_counted(tmp_path, caplog):
    text = QQP + "0\t1\t2\tWhy?\tHow?\t0\n1\t3\t4\tWho?\n2\t5\t6\tSo?\tSo?\t1\n"
    assert read(tmp_path, text, "qqp") == ((["Why?", "So?"], ["How?", "So?"]), [0, 1])
    assert "left out 1 incomplete rows, kept 2" in caplog.text


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("rte", RTE + GOOD + "1\ta\tentailment\n",
         ":3: expected 4 fields between '\\t' (index, sentence1, sentence2, label), got 3"),
        ("rte", RTE + GOOD + "1\ta\tb\tmaybe\n",
         ":3: unknown label 'maybe'; expected one of entailment, not_entailment"),
        ("rte", RTE + GOOD + "1\t\udce9\tb\tentailment\n", ":3: not valid UTF-8"),
        ("rte", RTE, ": no examples in it"),
        ("rte", "index,sentence1\n",
         ":1: the header has no 'sentence1', 'sentence2', 'label'; it has 'index,sentence1'"),
        ("stsb", STSB + "0\ta\tb\tmuch\n", ":2: expected a number as the score, got 'much'"),
        ("stsb", STSB + "0\ta\tb\tnan\n", ":2: expected a number as the score, got 'nan'"),
        ("emotion", "fine;joy\ni feel\n",
         ":2: expected 2 fields between ';' (text, label_name), got 1"),
        # a header counts as such in the first line only
        ("emotion", "a;joy\ntext;label_name\n",
         (":2: unknown label 'label_name'; "
          "expected one of sadness, joy, love, anger, fear, surprise")),
    ],
)  # fmt: skip
def test_wrong_tsv_row_is_named_by_file_and_line(tmp_path, task, text, message):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text, task)
    assert str(error.value) == f"{tmp_path}/train.tsv{message}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4\n", "is a Git LFS pointer"),
        (b"\n <!DOCTYPE html>\n<title>404</title>\n", "is a web page, not the file itself"),
        (b"", "is empty"),
    ],
)
def test_data_file_that_is_pointer_page_or_empty_is_named(glue, data, message):
    path = glue / "rte" / "dev.tsv"
    path.write_bytes(data)
    assert refusal(glue).startswith(f"{path} {message}")


PIECES = [b"\t", b"\n", b"\r", b"\0", b"\xff", b" ", b'"', b"1", b"nan", b"0.5", "\u2028".encode()]
FILES = {
    task: (f"{form[0]}{rows(form, 1)}".encode(), form[0].encode()) for task, form in FORMS.items()
}


@fuzzed(st.sampled_from(sorted(FORMS)), st.lists(st.sampled_from(PIECES) | st.binary(max_size=4)))
def test_random_bytes_as_tsv_are_read_or_refused_by_file(task, pieces):
    spec = plugins.load("train.tasks", task)(TrainConfig(task=task)).spec
    with TemporaryDirectory() as folder:
        path = Path(folder, "dev.tsv")
        for start in (b"", *FILES[task]):
            path.write_bytes(start + b"".join(pieces))
            for read in (classification.read, classification.read_unlabelled):
                try:
                    assert all(map(len, read(spec, path)))
                except UsageError as error:
                    assert str(error).startswith(str(path))


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"^--model .* cannot be read \(Is a directory\)$"):
        refuse_stand_in(tmp_path, "--model")


def test_missing_data_files_and_folders_are_named(glue):
    for folder, what in ((glue / "no", "does not exist"), (glue / "vocab.txt", "is not a folder")):
        message = refusal(glue, data_dir=folder)
        assert message.startswith(f"--data-dir {folder} {what} on {gethostname()}; ")
        assert message.endswith(f"--send {folder}")
    (glue / "none").mkdir()
    message = "has no train.tsv, dev_matched.tsv, dev_mismatched.tsv; "
    assert message in refusal(glue, "mnli", data_dir=glue / "none")
    (glue / "rte").rename(glue / "RTE")  # as in GLUE's own archive
    assert refusal(glue, data_dir=glue).endswith(f"dev.tsv; they are in {glue / 'RTE'}")


def test_unlabelled_set_of_the_hub_is_read_by_its_columns(glue, hub):
    texts = ["the cat", "a dog ran"]
    asked = hub({"sentence1": texts, "sentence2": texts, "label": [-1, -1], "idx": [0, 1]})
    unlabelled = build(glue, data_dir=None).unlabelled()["RTE"]
    assert (unlabelled.texts, unlabelled.keys) == ([texts, texts], ["0", "1"])
    assert [words[-1] for words in asked] == ["test"]
