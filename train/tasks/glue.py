"""GLUE's nine tasks: `--task rte` is a row of this table."""

from configs.settings.train import TrainConfig
from train.tasks.text.classification import TRAIN, GlueTask, Part, Spec

TWO_SENTENCES = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")
BOTH = ("accuracy", "f1")
TEST = Part("test.tsv", "test")
MNLI = {
    "train": TRAIN,
    "valid": Part("dev_matched.tsv", "validation_matched"),
    "mm": Part("dev_mismatched.tsv", "validation_mismatched"),
}
MNLI_TESTS = {
    "MNLI-m": Part("test_matched.tsv", "test_matched"),
    "MNLI-mm": Part("test_mismatched.tsv", "test_mismatched"),
}
SPECS = (
    # Is an English sentence acceptable?
    Spec(name="cola", text=("sentence",), columns=("source", "label", "original_star", "sentence"),
         labels=("0", "1"), label_names=("unacceptable", "acceptable"),
         metrics=("matthews_correlation",), tests={"CoLA": TEST}),
    # Does a sentence follow from another? In known kinds of text, and in new ones (mm).
    Spec(name="mnli", text=TWO_SENTENCES, label="gold_label", hub_text=("premise", "hypothesis"),
         labels=("entailment", "neutral", "contradiction"), parts=MNLI, tests=MNLI_TESTS),
    # Do two sentences from the news mean the same?
    Spec(name="mrpc", text=("#1 String", "#2 String"), label="Quality", hub_text=TWO_SENTENCES,
         labels=("0", "1"), label_names=("not_equivalent", "equivalent"), metrics=BOTH,
         tests={"MRPC": TEST}),
    # Does a sentence answer a question?
    Spec(name="qnli", text=("question", "sentence"), labels=ENTAILMENT, tests={"QNLI": TEST}),
    # Do two questions ask the same?
    Spec(name="qqp", text=("question1", "question2"), label="is_duplicate", short_rows=True,
         labels=("0", "1"), label_names=("not_duplicate", "duplicate"), metrics=BOTH,
         tests={"QQP": TEST}),
    # Does a sentence follow from another?
    Spec(name="rte", text=TWO_SENTENCES, labels=ENTAILMENT, tests={"RTE": TEST}),
    # Is a phrase of a film review positive?
    Spec(name="sst2", text=("sentence",), labels=("0", "1"), label_names=("negative", "positive"),
         tests={"SST-2": TEST}),
    # How similar are two sentences, from 0 to 5?
    Spec(name="stsb", text=TWO_SENTENCES, label="score", scores=(0.0, 5.0), tests={"STS-B": TEST}),
    # Does a sentence with a pronoun resolved follow from the other?
    Spec(name="wnli", text=TWO_SENTENCES, labels=("0", "1"), label_names=ENTAILMENT[::-1],
         tests={"WNLI": TEST}),
)  # fmt: skip


def build(config: TrainConfig) -> GlueTask:
    """The task that `config.task` names."""
    return GlueTask(next(spec for spec in SPECS if spec.name == config.task), config)
