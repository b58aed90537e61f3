"""SST-2: is a phrase of a film review positive?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="sst2",
        text=("sentence",),
        labels=("0", "1"),
        label_names=("negative", "positive"),
    ),
)
