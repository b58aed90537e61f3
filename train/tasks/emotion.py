"""Emotion: one of six emotions in a short English message; the workload of BSC's study."""

from functools import partial

from train.tasks.text.classification import GlueTask, Part, Spec

SPEC = Spec(
    name="emotion",
    hub=("dair-ai/emotion",),
    columns=("text", "label_name"),
    separator=";",
    text=("text",),
    label="label_name",
    labels=("sadness", "joy", "love", "anger", "fear", "surprise"),
    parts={
        "train": Part("train.txt", "train"),
        "val": Part("val.txt", "validation"),
        "test": Part("test.txt", "test"),
    },
    pad_multiple=8,  # the fastest for half precision on tensor cores
)

build = partial(GlueTask, SPEC)
