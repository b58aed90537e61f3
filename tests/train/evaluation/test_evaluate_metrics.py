"""A metric of `evaluate` on several ranks equals that of one process, without a shared file."""

import json
import random
import re
from pathlib import Path

import evaluate as library
import pytest
import torch

from muster.errors import MusterError, UsageError
from tests.train.evaluation.metric_worker import MODULES
from tests.train.workers import run_on_ranks
from train.evaluation.evaluate_metrics import evaluate
from train.model import rng

SCORES, DISTANCES, TEXTS = (
    str(MODULES / f"{name}.py") for name in ("class_scores", "distances", "texts")
)
NOWHERE = "/proc/no-home"  # nobody can create a folder there, not even root


def cases():
    """Yield cases of 23 samples: whole numbers, reals, vectors, texts, and several metrics."""
    draw = random.Random(3)
    classes = [[draw.randrange(3) for _ in range(23)] for _ in range(2)]
    reals = [[draw.random() for _ in range(23)] for _ in range(2)]
    vectors = [[[draw.random() for _ in range(4)] for _ in range(23)] for _ in range(2)]
    words = ["Ein", "zwei", "ähnlich", "vier 四"]
    texts = draw.choices(words, k=23)
    rights = [draw.choices(words, k=draw.randrange(1, 3)) for _ in range(23)]
    sources = [str(number) for number in range(23)]
    for columns, metric, arguments in (
        (classes, SCORES, {}),
        (classes, SCORES, {"average": "micro"}),
        (reals, DISTANCES, {}),
        (vectors, DISTANCES, {}),
        ((texts, rights, sources), TEXTS, {"lower": True}),
        (classes, [SCORES, SCORES], {}),
        (classes, {"one": SCORES, "other": DISTANCES}, {}),
    ):
        names = ("predictions", "references", "sources")[: len(columns)]
        yield dict(zip(names, columns, strict=True)), metric, arguments


def by_one_process(metric, columns, arguments, cache):
    """Return the results of `evaluate`, called as in its own documentation."""

    def load(name):
        return library.load(name, cache_dir=str(cache))

    if isinstance(metric, str):
        module = load(metric)
    elif isinstance(metric, dict):
        module = library.combine({label: load(name) for label, name in metric.items()})
    else:
        module = library.combine(list(map(load, metric)))
    result = module.compute(**columns, **arguments)
    # ranks exchange arrays as lists, and keys as texts
    return json.loads(json.dumps(result, default=lambda array: array.tolist()))


@pytest.fixture
def answers(tmp_path):
    """Make a folder with each case and its results in one process."""
    written = []
    for columns, metric, arguments in cases():
        answer = by_one_process(metric, columns, arguments, tmp_path)
        for tensors in (False, metric in (SCORES, DISTANCES)):
            case = {"columns": list(columns), "metric": metric, "arguments": arguments}
            written.append({**columns, **case, "answer": repr(answer), "tensors": tensors})
    (tmp_path / "cases.json").write_text(json.dumps(written))
    return tmp_path


SLOW = pytest.mark.slow


@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=SLOW) for ranks in (1, 2, 4))])
def test_metric_on_uneven_ranks_equals_one_process(ranks, answers):
    run_on_ranks("tests/train/evaluation/metric_worker.py", ranks, str(answers))


def test_cache_that_cannot_be_written_is_named_with_the_variable(monkeypatch):
    monkeypatch.setattr(library.config, "HF_MODULES_CACHE", NOWHERE)
    with pytest.raises(UsageError, match=rf"class_scores.py: .*{NOWHERE}.* HF_HOME "):
        evaluate(SCORES, predictions=[1], references=[1])


def test_loaded_metric_module_is_used_and_then_restored(tmp_path):
    module = library.load(SCORES, cache_dir=str(tmp_path), num_process=2, process_id=1)
    result = evaluate(module, predictions=[1, 0], references=[1, 1], average="micro")
    assert result["f1"] == 0.5
    assert (module.keep_in_memory, module.num_process, module.process_id) == (False, 2, 1)
    alone = library.load(SCORES, cache_dir=str(tmp_path))
    combined = library.combine([alone], force_prefix=True)
    assert "class_scores_f1" in evaluate(combined, predictions=[1], references=[1])
    alone.add(prediction=1, reference=1)
    with pytest.raises(UsageError, match=r" 1 samples .*add\(\)"):
        evaluate(alone, predictions=[1], references=[1])
    with pytest.raises(UsageError, match=r"a metric .* int$"):
        evaluate(3, predictions=[1], references=[1])


def test_metric_writes_no_sample_to_a_disk_and_draws_no_random_number(cache):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    evaluate(SCORES, predictions=[1], references=[1])
    with pytest.raises(MusterError, match=r"metric class_scores: \w+: The 'average'"):
        evaluate(SCORES, predictions=[1], references=[1], average="none such")
    assert torch.equal(before, torch.get_rng_state())
    assert not [path for path in (cache / "HF_METRICS_CACHE").rglob("*") if path.is_file()]


def test_random_numbers_of_a_metric_do_not_change_later_ones(tmp_path):
    """Rouge's resampling draws some with numpy, after which rank 0's dropout would differ."""
    path = tmp_path / "drawing.py"
    path.write_text(
        "import random\nimport datasets\nimport evaluate\nimport numpy\nimport torch\n"
        "class Drawing(evaluate.Metric):\n"
        "    def _info(self):\n"
        "        number = datasets.Value('int64')\n"
        "        features = datasets.Features({'predictions': number, 'references': number})\n"
        "        return evaluate.MetricInfo(description='', citation='', features=features)\n"
        "    def _compute(self, predictions, references):\n"
        "        return {'drawn': random.random() + numpy.random.rand() + torch.rand(()).item()}\n"
    )
    rng.seed(1)
    before = rng.capture()
    evaluate(str(path), predictions=[1], references=[1])
    after = rng.capture()
    assert torch.equal(before.pop("torch"), after.pop("torch"))
    assert before == after


def test_metric_that_returns_no_dict_is_refused(tmp_path):
    text = Path(DISTANCES).read_text(encoding="utf-8")
    path = tmp_path / "own_metric.py"
    path.write_text(re.sub(r"return \{\"mean\".*", "return 0.5", text))
    problem = "metric distances: .* dict .* float"
    with pytest.raises(MusterError, match=problem):
        evaluate(str(path), predictions=[1.0], references=[1.0])


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        *((positions, ".* one whole number") for positions in ([0.5, 1.0], ["a", "b"], [[0], [1]])),
        ([0, -1], ".* -1, .* 0"),
    ],
)
def test_positions_that_are_no_whole_numbers_from_0_are_refused(positions, problem):
    with pytest.raises(UsageError, match=f"positions {problem}"):
        evaluate(SCORES, predictions=[1, 0], references=[1, 1], positions=positions)
