"""HetSeq's example of an own task: a small convolutional network on MNIST."""

from functools import partial

from torch import nn

from train.tasks.vision import idx
from train.tasks.vision.image_classification import ImageTask, Spec


def network() -> nn.Module:
    """As in HetSeq and in torch's own example."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Dropout(0.25), nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(128, idx.CLASSES),
    )  # fmt: skip


SPEC = Spec(
    models={"cnn": network},
    read=idx.read,
    hub="ylecun/mnist",
    column="image",
    mode="L",
    mean=(33.3285,),  # 0.1307 and 0.3081 of 255
    std=(78.5655,),
    classes=idx.CLASSES,
)

build = partial(ImageTask, SPEC)
