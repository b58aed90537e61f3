"""--metrics: the results of `evaluate` on the whole set, in every task, on any number of ranks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from configs.settings.train import TrainConfig
from launch.programs import own_program
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.launch.submit import submit
from tests.train.evaluation.metric_worker import MODULES
from tests.train.workers import records
from train.evaluation.task_metrics import MetricChoice, Predictions, TaskMetrics, parse_metrics
from train.sync.ranks import Ranks
from train.tasks import bert, glue, ner, synthetic

SCORES, DISTANCES = str(MODULES / "class_scores.py"), str(MODULES / "distances.py")
CONFIG = TrainConfig(task="synthetic", sync="single", device="cpu")


def of(text, predictions, references, taken=()):
    metrics = TaskMetrics(text, Ranks())
    samples = Predictions()
    for index in reversed(range(len(predictions))):
        chosen = slice(index, index + 1)
        samples.add(predictions[chosen], references[chosen], [index])
    results = metrics.compute(samples, dict.fromkeys(taken, 0.0))
    return results, metrics.messages


def test_metrics_flag_is_parsed_and_wrong_forms_are_refused():
    assert parse_metrics("f1, ./my.py") == [
        MetricChoice("f1", None, {}),
        MetricChoice("./my.py", None, {}),
    ]
    (choice,) = parse_metrics("glue:mrpc:average=macro:labels=[1]:zero_division=0")
    assert choice == ("glue", "mrpc", {"average": "macro", "labels": [1], "zero_division": 0})


@pytest.mark.parametrize("wrong", ["f1,,accuracy", "f1:", "glue:mrpc:cola", ":mrpc"])
def test_metrics_flag_of_another_form_is_refused(wrong):
    with pytest.raises(UsageError, match="NAME"):
        parse_metrics(wrong)


def test_results_that_are_no_numbers_are_left_out_and_named():
    results, messages = of(SCORES, [1, 0, 1], [1, 1, 1])
    assert results == {"f1": pytest.approx(0.4), "in_order": 2.0, "samples": 3.0}
    assert len(messages) == 1 and messages[0].startswith("metrics: of_each_0 ")


def test_taken_metric_name_gets_its_modules_name_in_front():
    results, _ = of(f"{SCORES}:average=micro", [1, 0], [1, 1], taken=["f1"])
    assert results["class_scores_f1"] == 0.5 and "f1" not in results and results["samples"] == 2.0
    results, _ = of(f"{SCORES}:average=micro,{SCORES},{DISTANCES}", [1, 0], [1, 1])
    assert results["class_scores_0_f1"] == 0.5 and results["class_scores_1_f1"] != 0.5
    assert results["mean"] == 0.5


def test_metric_that_needs_further_columns_is_refused():
    with pytest.raises(UsageError, match=r"texts.py: it needs sources"):
        TaskMetrics(str(MODULES / "texts.py"), Ranks())


@pytest.mark.slow
def test_metric_may_take_longer_than_timeout_s(tmp_path):
    plain = "    return {"
    sleeping = "    return __import__('time').sleep(20) or {"
    (tmp_path / "slow.py").write_text(Path(DISTANCES).read_text().replace(plain, sleeping))
    flags = ["--task", "synthetic", "--max-steps", "1", "--epochs", "1", "--evaluate", "end"]
    flags += ["--metrics", str(tmp_path / "slow.py"), "--timeout-s", "15", "--sync", "all_reduce"]
    code, _, err = submit("--nodes", "2", *flags, "--logs-dir", str(tmp_path), "--run-id", "run")
    assert code == 0, err
    assert "mean" in records(tmp_path / "run", 1)[-1]["metrics"]


def test_missing_metric_ends_a_run_before_its_first_step(tmp_path):
    flags = ["--task", "synthetic", "--metrics", "none_such", "--logs-dir", str(tmp_path)]
    code, _, err = submit("--nodes", "2", *flags)
    assert code != 0 and "metric none_such: " in err and "Traceback" not in err


def test_predictions_are_classes_scores_or_next_sentences():
    logits, labels = torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])
    for task in (synthetic.build(CONFIG), glue.build(replace(CONFIG, task="rte"))):
        predicted, right = task.predictions(logits, labels)
        assert (predicted.tolist(), right.tolist()) == ([1, 0], [1, 1])
    stsb = glue.build(replace(CONFIG, task="stsb"))
    scores, right = stsb.predictions(torch.tensor([[2.5], [0.5]]), torch.ones(2))
    assert scores.tolist() == [2.5, 0.5] and right.tolist() == [1, 1]
    counts = torch.tensor([[1.0, 0, 3, 1], [1.0, 0, 3, 0], [1.0, 0, 3, 0]])
    guessed, _ = bert.build(replace(CONFIG, task="bert")).predictions(
        counts, torch.tensor([1, 1, 0])
    )
    assert guessed.tolist() == [1, 0, 1]


def test_predictions_of_ner_are_tag_names_by_sentence(monkeypatch):
    task = ner.build(replace(CONFIG, task="ner"))
    monkeypatch.setattr(ner.Ner, "_tags", ["O", "B-PER"])
    logits = torch.tensor([[[1.0, 0], [0, 1.0], [0, 1.0]], [[0, 1.0], [1.0, 0], [1.0, 0]]])
    labels = torch.tensor([[0, -100, 1], [1, -100, -100]])
    assert task.predictions(logits, labels) == ([["O", "B-PER"], ["B-PER"]],) * 2


def test_metric_path_is_absolute_for_workers_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "my_metric.py").write_text("")
    monkeypatch.chdir(tmp_path)

    def metrics(given, name):
        return own_program._with_paths(replace(CONFIG, metrics=given), str, name).metrics

    text = metrics("f1:average=macro, my_metric.py:x=1", own_program._absolute_if_path)
    assert text == f"f1:average=macro,{tmp_path}/my_metric.py:x=1"
    assert metrics(f"{CHECKOUT}/a.py,f1", own_program._in_checkout) == "a.py,f1"
    assert metrics(None, str) is None
