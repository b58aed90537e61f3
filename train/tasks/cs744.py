"""CS744: VGG with BatchNorm on augmented CIFAR-10, as in the course."""

from torch import Tensor, nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.vision import cifar
from train.tasks.vision.image_classification import ImageTask, Spec

# Output channels of the 3x3 convolutions; "M" halves the image.
LAYERS: dict[str, tuple[int | str, ...]] = {
    "vgg11": (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "vgg13": (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M"),
    "vgg16": (
        *(64, 64, "M", 128, 128, "M"),
        *(256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512, "M"),
    ),
    "vgg19": (
        *(64, 64, "M", 128, 128, "M"),
        *(256, 256, 256, 256, "M", 512, 512, 512, 512, "M", 512, 512, 512, 512, "M"),
    ),
}
SPEC = Spec(
    read=cifar.read,
    hub="uoft-cs/cifar10",
    column="img",
    mode="RGB",
    mean=(125.3, 123.0, 113.9),
    std=(63.0, 62.1, 66.7),
    classes=cifar.CLASSES,
    augment=True,
)


class Cs744(ImageTask):
    """The depth of the network is --model: vgg11 by default."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(SPEC, config)
        self._name = config.model or "vgg11"
        if self._name not in LAYERS:
            raise UsageError(f"--model: unknown {self._name!r}; known: {', '.join(LAYERS)}")

    def build_model(self) -> nn.Module:
        return Vgg(self._name, SPEC.classes)


class Vgg(nn.Module):
    """BatchNorm after every convolution, one linear layer at the end.

    Images (n, 3, 32, 32) to logits (n, classes).
    """

    def __init__(self, name: str, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_layers(name))
        self.fc1 = nn.Linear(512, classes)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc1(self.layers(images).flatten(1))
        return logits


def _layers(name: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    channels = 3
    for width in LAYERS[name]:
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
        else:
            layers.append(nn.Conv2d(channels, width, 3, padding=1))
            layers.append(nn.BatchNorm2d(width))
            layers.append(nn.ReLU(inplace=True))
            channels = width
    return layers


build = Cs744
