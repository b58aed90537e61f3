"""RTE: does a sentence follow from another?"""

from functools import partial

from train.glue.spec import Spec
from train.glue.task import GlueTask

build = partial(
    GlueTask,
    Spec(
        name="rte",
        text=("sentence1", "sentence2"),
        labels=("entailment", "not_entailment"),
    ),
)
