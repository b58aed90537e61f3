"""Each GLUE test label is predicted once, on any number of ranks, in the format of GLUE's site."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from configs import plugins
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train import alone
from tests.train.on_ranks import trainer_of
from tests.train.tasks.text.made import make, prepared
from tests.train.workers import results_of
from train.loop import predictions
from train.loop.trainer import Trainer
from train.sync.ranks import Ranks
from train.tasks import synthetic
from train.tasks.base import Batch, Unlabelled

TEXTS = ["The cat sat .", "A dog ran .", "Did it ?", "The cat sat sat sat sat .", "a dog"]
# Headers of the files that GLUE distributes; the key column does not always have the same name.
HEADERS = {
    "rte": "index\tsentence1\tsentence2",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
    "cola": "index\tsentence",
    "qqp": "id\tquestion1\tquestion2",
    "mrpc": "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2",
}
NAMES = {"rte": "RTE", "stsb": "STS-B", "cola": "CoLA", "qqp": "QQP", "mrpc": "MRPC"}


def with_tests(folder: Path) -> Path:
    """Make the files of `make` and test sets of five rows; MNLI's second set has one row."""
    made = make(folder)
    for task, header in HEADERS.items():
        columns = len(header.split("\t"))
        lines = [
            "\t".join([str(row), *["x"] * (columns - 3), text, text][:columns])
            if columns > 2
            else f"{row}\t{text}"
            for row, text in enumerate(TEXTS)
        ]
        name = "test_matched.tsv" if task == "mnli" else "test.tsv"
        text = "\n".join([header, *lines]) + "\n"
        (made / task / name).write_text(text, encoding="utf-8")
        if task == "mnli":
            (made / task / "test_mismatched.tsv").write_text(f"{header}\n{lines[0]}\n")
    return made


class Numbers(synthetic.Synthetic):
    """A task with numbers as texts: no import of transformers, which takes most of such a test."""

    def unlabelled(self) -> dict[str, Unlabelled]:
        sets = {"five": ["0.5", "-2", "1", "3", "-1"], "single": ["4"]}
        return {
            name: Unlabelled([f"k{one}" for one in texts], [texts]) for name, texts in sets.items()
        }

    def batch_of(self, unlabelled: Unlabelled, rows: Sequence[int]) -> Batch:
        numbers = [[float(unlabelled.texts[0][row])] * synthetic.FEATURES for row in rows]
        return {"features": torch.tensor(numbers)}

    def logits(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        return model(batch["features"])

    def answers(self, logits: torch.Tensor) -> list[str]:
        return [f"{score:.4f}" for score in logits[:, 0].tolist()]


def written(trainer: Trainer, run_dir: Path) -> dict[str, str]:
    """Return what rank 0 writes, by file name."""
    paths = predictions.write_predictions(trainer, predictions.unlabelled_sets(trainer), run_dir)
    return {path.name: path.read_text() for path in paths} if trainer.ranks.rank == 0 else {}


def predictions_of_numbers(ranks: Ranks, folder: str, sync: str) -> dict[str, str]:
    config = TrainConfig(task="synthetic", sync=sync, eval_batch_size=2, device="cpu")
    run_dir = Path(folder) / f"run-{ranks.world_size}"
    return written(trainer_of(config, ranks, Numbers(config)), run_dir)


def predicted(made: Path, task: str) -> dict[str, str]:
    sizes = {"eval_batch_size": 2, "max_seq_length": 24}
    config = alone.settings(made, task=task, data_dir=made / task, **sizes)
    built = plugins.load("train.tasks", task)(config)
    built.prepare()
    return written(trainer_of(config, Ranks(), built), made / "run")


@pytest.mark.parametrize("sync", ["ddp", "fsdp"])
def test_predictions_of_three_ranks_are_in_order(tmp_path, sync):
    """One set has five rows; the other has a single row, so two ranks have none."""
    by_one_rank = predictions_of_numbers(Ranks(), str(tmp_path), "single")
    assert by_one_rank.keys() == {"five.tsv", "single.tsv"}
    header, *lines = by_one_rank["five.tsv"].splitlines()
    keys, scores = zip(*(line.split("\t") for line in lines), strict=True)
    assert header == "index\tprediction" and keys == ("k0.5", "k-2", "k1", "k3", "k-1")
    assert len(set(scores)) == 5
    (tmp_path / "results").mkdir()
    first, *others = results_of(
        predictions_of_numbers, 3, tmp_path / "results", str(tmp_path), sync
    )
    assert first == by_one_rank and others == [{}, {}]


def test_mnli_has_two_prediction_files(tmp_path):
    texts = predicted(with_tests(tmp_path), "mnli")
    assert texts.keys() == {"MNLI-m.tsv", "MNLI-mm.tsv"}
    assert len(texts["MNLI-mm.tsv"].splitlines()) == 2


@pytest.mark.parametrize("task", NAMES)
def test_prediction_files_have_the_format_of_glue(tmp_path, task):
    made = with_tests(tmp_path)
    ((name, text),) = predicted(made, task).items()
    header, *lines = text.splitlines()
    assert (name, header) == (f"{NAMES[task]}.tsv", "index\tprediction")
    keys, answers = zip(*(line.split("\t") for line in lines), strict=True)
    assert keys == ("0", "1", "2", "3", "4")
    if task == "stsb":
        assert all(0 <= float(answer) <= 5 for answer in answers)
    else:
        assert set(answers) <= ({"entailment", "not_entailment"} if task == "rte" else {"0", "1"})


def test_prediction_is_the_models_label_of_the_text(tmp_path):
    """The label depends neither on padding nor on the other rows of a batch."""
    made = with_tests(tmp_path)
    task = prepared(made)
    torch.manual_seed(0)
    model = task.build_model().eval()
    unlabelled = task.unlabelled()["RTE"]
    separate = [task.logits(model, task.batch_of(unlabelled, [row])) for row in range(5)]
    together = task.logits(model, task.batch_of(unlabelled, range(5)))
    assert torch.allclose(torch.cat(separate), together, atol=1e-6)
    assert task.answers(torch.tensor([[2.0, 1.0], [0.0, 3.0]])) == ["entailment", "not_entailment"]
    scores = prepared(made, "stsb").answers(torch.tensor([[-0.2], [2.34567], [7.0]]))
    assert scores == ["0.000", "2.346", "5.000"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("index\tsentence1\n0\ta\n", "test.tsv:1: "),
        ("index\tsentence1\tsentence2\n0\ta\n", "test.tsv:2: expected 3 fields"),
        ("index\tsentence1\tsentence2\n", "test.tsv: "),
        ("", "test.tsv is empty"),
        (None, "rte has no test.tsv"),
    ],
)
def test_damaged_test_set_is_named(tmp_path, text, message):
    made = make(tmp_path)
    if text is not None:
        (made / "rte" / "test.tsv").write_text(text)
    with pytest.raises(UsageError) as refusal:
        prepared(made).unlabelled()
    assert message in str(refusal.value)


def test_task_without_unlabelled_sets_is_refused(tmp_path):
    config = alone.settings(tmp_path, task="synthetic", data_dir=None)
    trainer = trainer_of(config, Ranks(), plugins.load("train.tasks", "synthetic")(config))
    with pytest.raises(UsageError, match="--predict: --task synthetic "):
        predictions.unlabelled_sets(trainer)
    with pytest.raises(UsageError, match="--predict: --task emotion "):
        prepared(make(tmp_path), "emotion").unlabelled()
