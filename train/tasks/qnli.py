"""QNLI: does a sentence answer a question?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="qnli",
        text=("question", "sentence"),
        labels=("entailment", "not_entailment"),
    ),
)
