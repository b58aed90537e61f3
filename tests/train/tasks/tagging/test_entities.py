"""Scores are seqeval's, and counts of several ranks add up to the whole."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train.tasks.ner import Entities

TAGS = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "I-X-Y"]
numbers = st.integers(0, len(TAGS) - 1)
# Sentences of (predicted, gold) per word.
corpora = st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12), min_size=1)


@settings(max_examples=400, deadline=None)
@given(corpora, st.integers(1, 4))
def test_scores_are_seqevals_over_any_number_of_ranks(corpus, ranks):
    from seqeval import metrics

    parts = [Entities(TAGS) for _ in range(ranks)]
    for at, sentence in enumerate(corpus):
        parts[at % ranks].count([p for p, _ in sentence], [g for _, g in sentence])
    whole = Entities(TAGS)
    whole.state = torch.stack([part.state for part in parts]).sum(0)
    found = whole.compute()
    predicted = [[TAGS[p] for p, _ in sentence] for sentence in corpus]
    gold = [[TAGS[g] for _, g in sentence] for sentence in corpus]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of nothing to count, which is 0 there as here
        assert found["precision"] == pytest.approx(metrics.precision_score(gold, predicted))
        assert found["recall"] == pytest.approx(metrics.recall_score(gold, predicted))
        assert found["f1"] == pytest.approx(metrics.f1_score(gold, predicted))
        report = metrics.classification_report(gold, predicted, output_dict=True)
    for kind in ("LOC", "PER", "X-Y"):
        assert found[f"f1_{kind}"] == pytest.approx(report.get(kind, {}).get("f1-score", 0.0))


def test_only_the_first_pieces_of_words_count():
    metric = Entities(["O", "B-A", "I-A"])
    labels = torch.tensor([[-100, 1, -100, 2, -100], [-100, 0, 1, -100, -100]])
    guesses = torch.tensor([[0, 1, 0, 2, 0], [1, 1, 0, 1, 1]])
    metric.update(torch.nn.functional.one_hot(guesses, 3).float(), labels, torch.arange(2))
    assert metric.state.tolist() == [[1, 2, 2]]
    assert metric.compute() == {"precision": 0.5, "recall": 0.5, "f1": 0.5, "f1_A": 0.5}
