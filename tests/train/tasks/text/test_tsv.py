"""GLUE's own files are read with all their quirks; what is wrong is named by file and line."""

import pytest

from configs import plugins
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.text import tsv

RTE = "index\tsentence1\tsentence2\tlabel\n"


def spec_of(task):
    return plugins.load("train.tasks", task)(TrainConfig(task=task)).spec


def read(tmp_path, text, task="rte"):
    path = tmp_path / "train.tsv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return tsv.read(spec_of(task), path)


def refusal(tmp_path, text, task="rte"):
    with pytest.raises(UsageError) as error:
        read(tmp_path, text, task)
    assert "\n" not in str(error.value)
    return str(error.value).replace(str(tmp_path), "")


def test_quotes_are_text(tmp_path):
    row = '0\tHe said "no.\tNo" was said.\tentailment\n1\t"\t"x\tnot_entailment\n'
    found = read(tmp_path, RTE + row)
    assert found.texts == (['He said "no.', '"'], ['No" was said.', '"x'])
    assert found.labels == [0, 1]


def test_a_mark_at_the_start_carriage_returns_and_a_blank_end_do_no_harm(tmp_path):
    text = "\ufeff" + RTE.replace("\n", "\r\n") + "0\ta\tb\tentailment\r\n\r\n"
    assert read(tmp_path, text) == ((["a"], ["b"]), [0])


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\r"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    found = read(tmp_path, f"{RTE}0\ta{separator}a\tb\tentailment\n")
    assert found.texts[0] == [f"a{separator}a"]


def test_a_last_line_without_newline_counts(tmp_path):
    assert len(read(tmp_path, RTE + "0\ta\tb\tentailment").labels) == 1


def test_qqp_has_rows_that_lack_fields_and_says_how_many(tmp_path, caplog):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    text = header + "0\t1\t2\tWhy?\tHow?\t0\n1\t3\t4\tWho?\n2\t5\t6\tSo?\tSo?\t1\n"
    assert read(tmp_path, text, "qqp") == ((["Why?", "So?"], ["How?", "So?"]), [0, 1])
    assert "left out 1 rows that lack fields, kept 2" in caplog.text
    assert ":2: expected 6" in refusal(tmp_path, header + "0\t1\t2\ta\tb\t0\tmore\n", "qqp")


def test_wrong_rows_are_named(tmp_path):
    good = "0\ta\tb\tentailment\n"
    assert refusal(tmp_path, RTE + good + "1\ta\tentailment\n") == (
        "/train.tsv:3: expected 4 fields between '\\t' (index, sentence1, sentence2, label), got 3"
    )
    assert refusal(tmp_path, RTE + good + "1\ta\tb\tmaybe\n") == (
        "/train.tsv:3: unknown label 'maybe'; known: entailment, not_entailment"
    )
    assert "/train.tsv:3: not UTF-8" in refusal(
        tmp_path, (RTE + good).encode() + b"1\t\xe9\tb\tentailment\n"
    )


def test_wrong_files_are_named(tmp_path):
    assert "the header has no 'sentence1'" in refusal(tmp_path, "")
    assert "it has ''" in refusal(tmp_path, "\n\n")
    assert "no examples in it" in refusal(tmp_path, RTE)
    assert refusal(tmp_path, "index,sentence1\n") == (
        "/train.tsv:1: the header has no 'sentence1', 'sentence2', 'label'; "
        "it has 'index,sentence1'"
    )


@pytest.mark.parametrize("score", ["much", "nan", "inf", ""])
def test_a_score_is_a_number(tmp_path, score):
    header = "index\tsentence1\tsentence2\tscore\n"
    assert read(tmp_path, header + "0\ta\tb\t3.750\n", "stsb").labels == [3.75]
    assert ":2: expected a number as score" in refusal(
        tmp_path, header + f"0\ta\tb\t{score}\n", "stsb"
    )


def test_missing_files_and_folders_are_named(tmp_path):
    spec = spec_of("mnli")
    with pytest.raises(UsageError, match="nowhere does not exist"):
        tsv.find(spec, tmp_path / "nowhere")
    (tmp_path / "train.tsv").touch()
    with pytest.raises(UsageError, match="is not a folder"):
        tsv.find(spec, tmp_path / "train.tsv")
    with pytest.raises(UsageError) as error:
        tsv.find(spec, tmp_path)
    assert "has no dev_matched.tsv, dev_mismatched.tsv; mnli is read from train.tsv" in str(
        error.value
    )


def test_the_folder_around_a_tasks_own_is_answered_with_that(tmp_path):
    (tmp_path / "RTE").mkdir()
    (tmp_path / "RTE" / "train.tsv").touch()
    with pytest.raises(UsageError, match=f"dev.tsv; they are in {tmp_path / 'RTE'}$"):
        tsv.find(spec_of("rte"), tmp_path)
