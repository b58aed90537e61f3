"""MRPC: do two sentences of the news say the same?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="mrpc",
        text=("#1 String", "#2 String"),
        label="Quality",
        hub_text=("sentence1", "sentence2"),
        labels=("0", "1"),
        label_names=("not_equivalent", "equivalent"),
        metrics=("accuracy", "f1"),
    ),
)
