"""CoLA: is an English sentence acceptable?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="cola",
        columns=("source", "label", "original_star", "sentence"),
        text=("sentence",),
        labels=("0", "1"),
        label_names=("unacceptable", "acceptable"),
        metrics=("matthews_correlation",),
    ),
)
