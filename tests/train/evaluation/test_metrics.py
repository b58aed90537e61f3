"""Metrics equal scikit-learn's and scipy's, however the samples are split."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from train.evaluation.metrics import Confusion, Correlation

# from scikit-learn, on sets so small that one of the classes is missing
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")


def over_ranks(make, logits, labels, ranks, batch=3):
    """Return the results of the sum of the ranks' states; rank r has samples r, r + ranks, ..."""
    metrics = [make() for _ in range(ranks)]
    for rank, metric in enumerate(metrics):
        for rows in torch.arange(len(labels))[rank::ranks].split(batch):
            metric.update(logits[rows], labels[rows], rows)
    total = make()
    total.state = sum((metric.state for metric in metrics), torch.zeros_like(total.state))
    return total.compute()


def logits_for(predictions, classes):
    return torch.nn.functional.one_hot(torch.tensor(predictions), classes) - 0.5


@settings(deadline=None, max_examples=100)
@given(st.integers(2, 3), st.data(), st.integers(1, 5))
def test_metrics_equal_scikit_learn_on_any_split(classes, data, ranks):
    number = st.integers(0, classes - 1)
    pairs = data.draw(st.lists(st.tuples(number, number), min_size=1, max_size=40))
    labels, predictions = (list(column) for column in zip(*pairs, strict=True))
    wanted = {
        "accuracy": accuracy_score(labels, predictions),
        "matthews_correlation": matthews_corrcoef(labels, predictions),
    }
    if classes == 2:
        wanted["f1"] = f1_score(labels, predictions, zero_division=0)
    logits = logits_for(predictions, classes)
    names = tuple(wanted)
    results = over_ranks(lambda: Confusion(classes, names), logits, torch.tensor(labels), ranks)
    assert results == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("ranks", range(1, 6))
def test_correlations_equal_scipy_on_uneven_splits_with_ties(ranks):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 26, (37,), generator=generator) / 5
    logits = (labels + torch.randn(37, generator=generator)).unsqueeze(1)
    results = over_ranks(lambda: Correlation(37), logits, labels, ranks)
    predictions = logits.squeeze(1).double()
    assert results["pearson"] == pytest.approx(pearsonr(predictions, labels.double())[0], abs=1e-12)
    assert results["spearmanr"] == pytest.approx(spearmanr(predictions, labels)[0], abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_correlation_of_a_constant_prediction_is_nan():
    results = over_ranks(lambda: Correlation(4), torch.ones(4, 1), torch.arange(4.0), 2)
    assert all(math.isnan(value) for value in results.values())
