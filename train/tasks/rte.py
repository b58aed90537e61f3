"""RTE: does a sentence follow from another?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="rte",
        text=("sentence1", "sentence2"),
        labels=("entailment", "not_entailment"),
    ),
)
