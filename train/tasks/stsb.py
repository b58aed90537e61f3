"""STS-B: how similar are two sentences, from 0 to 5?"""

from functools import partial

from train.glue.spec import Spec
from train.glue.task import GlueTask

build = partial(
    GlueTask,
    Spec(
        name="stsb",
        text=("sentence1", "sentence2"),
        label="score",
    ),
)
