"""STS-B: how similar are two sentences, from 0 to 5?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="stsb",
        text=("sentence1", "sentence2"),
        label="score",
    ),
)
