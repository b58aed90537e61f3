"""VGG as CS744 has it: BatchNorm after every convolution, one linear layer at the end."""

from torch import Tensor, nn

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


class Vgg(nn.Module):
    """Images (n, 3, 32, 32) to logits (n, classes)."""

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
