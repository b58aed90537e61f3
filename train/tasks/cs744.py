"""CS744: VGG with BatchNorm on augmented CIFAR-10, as in the course."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from train.tasks.vision import cifar
from train.tasks.vision.image_classification import ImageTask, Spec

# How many 3x3 convolutions there are before each of five times that the image is halved.
LAYERS = {
    "vgg11": (1, 1, 2, 2, 2),
    "vgg13": (2, 2, 2, 2, 2),
    "vgg16": (2, 2, 3, 3, 3),
    "vgg19": (2, 2, 4, 4, 4),
}
WIDTHS = (64, 128, 256, 512, 512)  # their output channels


class Vgg(nn.Module):
    """BatchNorm after every convolution, one linear layer at the end.

    Images (n, 3, 32, 32) to logits (n, classes).
    """

    def __init__(self, convolutions: Sequence[int], classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for count, width in zip(convolutions, WIDTHS, strict=True):
            for _ in range(count):
                layers.append(nn.Conv2d(channels, width, 3, padding=1))
                layers += [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.layers = nn.Sequential(*layers)
        self.fc1 = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc1(self.layers(images).flatten(1))
        return logits


SPEC = Spec(
    models={name: partial(Vgg, counts, cifar.CLASSES) for name, counts in LAYERS.items()},
    read=cifar.read,
    hub="uoft-cs/cifar10",
    column="img",
    mode="RGB",
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
    classes=cifar.CLASSES,
    augment=True,
)

build = partial(ImageTask, SPEC)
