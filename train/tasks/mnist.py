"""HetSeq's example of an own task: a small convolutional network on MNIST."""

from torch import nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.vision import idx
from train.tasks.vision.image_classification import ImageTask, Spec

SPEC = Spec(
    read=idx.read,
    hub="ylecun/mnist",
    column="image",
    mode="L",
    mean=(33.3285,),  # 0.1307 and 0.3081 of 255
    std=(78.5655,),
    classes=idx.CLASSES,
)


class Mnist(ImageTask):
    """The network is fixed, as in HetSeq and in torch's own example."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(SPEC, config)
        if config.model is not None:
            raise UsageError(f"--model {config.model}: the mnist task has one model; leave it out")

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Flatten(),
            nn.Linear(64 * 12 * 12, 128),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(128, SPEC.classes),
        )


build = Mnist
