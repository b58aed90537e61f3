"""Metrics equal scikit-learn's, scipy's and `evaluate`'s, however the samples are split."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from train.evaluation.metrics import Confusion, Correlation

# scikit-learn on sets so small that one of the classes is missing
pytestmark = pytest.mark.filterwarnings("ignore:A single label was found")
ALL = ("accuracy", "f1", "matthews_correlation")


def over_ranks(make, logits, labels, ranks, batch=3):
    """What one all_reduce(SUM) of the ranks' states gives; rank r has samples r, r + ranks, ..."""
    metrics = [make() for _ in range(ranks)]
    for rank, metric in enumerate(metrics):
        for at in torch.arange(len(labels))[rank::ranks].split(batch):
            metric.update(logits[at], labels[at], at)
    total = make()
    total.state = sum((metric.state for metric in metrics), torch.zeros_like(total.state))
    return total.compute()


def logits_for(predictions, classes):
    return torch.nn.functional.one_hot(torch.tensor(predictions), classes) - 0.5


pairs_of = {
    classes: st.lists(
        st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40
    )
    for classes in (2, 3)
}


@settings(deadline=None, max_examples=60)
@given(pairs_of[2], st.integers(1, 5))
def test_two_classes_equal_scikit_learn_on_any_split(pairs, ranks):
    labels, predictions = (list(column) for column in zip(*pairs, strict=True))
    found = over_ranks(
        lambda: Confusion(2, ALL), logits_for(predictions, 2), torch.tensor(labels), ranks
    )
    assert found == pytest.approx(
        {
            "accuracy": accuracy_score(labels, predictions),
            "f1": f1_score(labels, predictions, zero_division=0),
            "matthews_correlation": matthews_corrcoef(labels, predictions),
        },
        abs=1e-12,
    )


@settings(deadline=None, max_examples=40)
@given(pairs_of[3], st.integers(1, 5))
def test_three_classes_equal_scikit_learn_on_any_split(pairs, ranks):
    labels, predictions = (list(column) for column in zip(*pairs, strict=True))
    names = ("accuracy", "matthews_correlation")
    found = over_ranks(
        lambda: Confusion(3, names), logits_for(predictions, 3), torch.tensor(labels), ranks
    )
    assert found["accuracy"] == pytest.approx(accuracy_score(labels, predictions))
    assert found["matthews_correlation"] == pytest.approx(
        matthews_corrcoef(labels, predictions), abs=1e-12
    )


@pytest.mark.parametrize("ranks", range(1, 6))
def test_correlations_equal_scipy_on_uneven_splits_and_with_ties(ranks):
    generator = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 26, (37,), generator=generator) / 5
    logits = (labels + torch.randn(37, generator=generator)).unsqueeze(1)
    found = over_ranks(lambda: Correlation(37), logits, labels, ranks)
    predictions = logits.squeeze(1).double()
    assert found["pearson"] == pytest.approx(pearsonr(predictions, labels.double())[0], abs=1e-12)
    assert found["spearmanr"] == pytest.approx(spearmanr(predictions, labels)[0], abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_constant_prediction_has_no_correlation():
    found = over_ranks(lambda: Correlation(4), torch.ones(4, 1), torch.arange(4.0), 2)
    assert all(math.isnan(value) for value in found.values())


def test_only_the_metrics_of_the_task_are_given():
    assert list(Confusion(2, ("accuracy",)).compute()) == ["accuracy"]


@pytest.mark.parametrize("ranks", [1, 4])
def test_they_equal_an_evaluate_metric_fed_with_the_whole_set(ranks, tmp_path):
    import datasets
    import evaluate

    class Glue(evaluate.Metric):  # the published module needs the Hub; its arithmetic is this
        def _info(self):
            return evaluate.MetricInfo(
                description="",
                citation="",
                features=datasets.Features(
                    {name: datasets.Value("int64") for name in ("predictions", "references")}
                ),
            )

        def _compute(self, predictions, references):
            return {
                "accuracy": float((np.array(predictions) == np.array(references)).mean()),
                "f1": float(f1_score(y_true=references, y_pred=predictions)),
                "matthews_correlation": float(matthews_corrcoef(references, predictions)),
            }

    generator = torch.Generator().manual_seed(ranks)
    logits, labels = torch.randn(277, 2, generator=generator), torch.arange(277) % 2
    reference = Glue(cache_dir=str(tmp_path), experiment_id=str(ranks))
    for part in torch.arange(277).split(64):
        reference.add_batch(predictions=logits[part].argmax(1), references=labels[part])
    found = over_ranks(lambda: Confusion(2, ALL), logits, labels, ranks)
    assert found == pytest.approx(reference.compute(), abs=1e-12)
