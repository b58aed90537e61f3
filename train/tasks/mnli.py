"""MNLI: does a sentence follow from another? In known kinds of text, and in others (mm)."""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Part, Spec

build = partial(
    GlueTask,
    Spec(
        name="mnli",
        text=("sentence1", "sentence2"),
        label="gold_label",
        hub_text=("premise", "hypothesis"),
        labels=("entailment", "neutral", "contradiction"),
        evaluation={
            "": Part("dev_matched.tsv", "validation_matched"),
            "mm": Part("dev_mismatched.tsv", "validation_mismatched"),
        },
    ),
)
