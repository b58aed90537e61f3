"""WNLI: does a sentence with a pronoun resolved follow from the other?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="wnli",
        text=("sentence1", "sentence2"),
        labels=("0", "1"),
        label_names=("not_entailment", "entailment"),
    ),
)
