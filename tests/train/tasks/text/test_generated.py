"""The generated set is always the same, keeps its held-out part apart, and needs both sentences."""

import re
from collections import Counter
from itertools import islice

import pytest

from train.tasks.text import generated


@pytest.fixture(scope="module")
def files():
    return generated.files()


@pytest.fixture(scope="module")
def rows(files):
    return {
        name: [line.split("\t") for line in files[f"{name}.tsv"].splitlines()[1:]]
        for name in ("train", "dev")
    }


def test_generated_text_is_always_the_same(files):
    assert generated.files() == files
    assert list(islice(generated.pairs(1), 9)) != list(islice(generated.pairs(2), 9))


def test_generated_sets_are_balanced_and_have_no_pair_twice(rows):
    assert {name: len(part) for name, part in rows.items()} == {"train": 7040, "dev": 1000}
    for part in rows.values():
        entailed = sum(row[3] == "entailment" for row in part)
        assert 0.47 < entailed / len(part) < 0.53
    assert len({(row[1], row[2]) for part in rows.values() for row in part}) == 8040


def test_bag_of_words_hardly_beats_chance_on_generated_text(rows):
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    def bag(row):
        words = ((at, word) for at in (1, 2) for word in re.findall(r"\w+", row[at].lower()))
        return {f"{at} {word}": count for (at, word), count in Counter(words).items()}

    vectorizer = DictVectorizer()
    known = vectorizer.fit_transform(map(bag, rows["train"]))
    model = LogisticRegression(max_iter=500).fit(known, [row[3] for row in rows["train"]])
    unseen = vectorizer.transform(map(bag, rows["dev"]))
    assert model.score(unseen, [row[3] for row in rows["dev"]]) < 0.65


def test_generated_files_are_kept_and_damaged_ones_written_again(tmp_path, files):
    generated.write(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert before.keys() == files.keys()
    generated.write(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    (tmp_path / "dev.tsv").write_text("cut off")
    generated.write(tmp_path)
    assert (tmp_path / "dev.tsv").read_text() == files["dev.tsv"]
