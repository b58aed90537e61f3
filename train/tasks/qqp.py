"""QQP: do two questions ask the same?"""

from functools import partial

from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Spec

build = partial(
    GlueTask,
    Spec(
        name="qqp",
        text=("question1", "question2"),
        label="is_duplicate",
        labels=("0", "1"),
        label_names=("not_duplicate", "duplicate"),
        metrics=("accuracy", "f1"),
        short_rows=True,
    ),
)
