"""MNLI: does a sentence follow from another? In known kinds of text, and in others (mm)."""

from functools import partial

from train.glue.spec import Part, Spec
from train.glue.task import GlueTask

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
