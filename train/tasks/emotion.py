"""Emotion: which of six does a short English message tell of? The workload of BSC's study."""

from functools import partial
from pathlib import Path

from muster.errors import UsageError
from train.tasks.sources.files import numbered_lines
from train.tasks.text.classification import GlueTask
from train.tasks.text.columns import Examples, Part, Spec
from train.tasks.text.tsv import label

HEADER = "text;label_name"


def read(spec: Spec, path: Path) -> Examples:
    """All examples of a file of `text;label` lines.

    Raises:
        UsageError: the file is empty, not UTF-8, or holds a wrong row or label.
    """
    texts: list[str] = []
    labels: list[float] = []
    for number, line in numbered_lines(path):
        if not line.strip() or (number == 1 and line.strip() == HEADER):
            continue
        text, semicolon, name = line.rpartition(";")  # the text may hold some, too
        if not semicolon or not text.strip():
            raise UsageError(f"{path}:{number}: expected text;label, got {line[:60]!r}")
        texts.append(text.strip())
        labels.append(label(spec, name.strip(), f"{path}:{number}"))
    if not texts:
        raise UsageError(f"{path}: no examples in it")
    return Examples((texts,), labels)


SPEC = Spec(
    name="emotion",
    hub=("dair-ai/emotion",),
    text=("text",),
    labels=("sadness", "joy", "love", "anger", "fear", "surprise"),
    train=Part("train.txt", "train"),
    evaluation={"val": Part("val.txt", "validation"), "test": Part("test.txt", "test")},
    pad_multiple=8,  # which half precision on tensor cores is fastest with
)

build = partial(GlueTask, SPEC, read=read)
