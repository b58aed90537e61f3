"""QNLI: does a sentence answer a question?"""

from functools import partial

from train.glue.spec import Spec
from train.glue.task import GlueTask

build = partial(
    GlueTask,
    Spec(
        name="qnli",
        text=("question", "sentence"),
        labels=("entailment", "not_entailment"),
    ),
)
