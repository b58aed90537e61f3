"""CS744: VGG with BatchNorm on CIFAR-10, augmented, as the course gives it."""

from torch import nn

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from train.tasks.vision import cifar
from train.tasks.vision.image_classification import ImageTask, Spec
from train.tasks.vision.image_hub import HubSet
from train.tasks.vision.images import Scale
from train.tasks.vision.vgg import LAYERS, Vgg

SPEC = Spec(
    read=cifar.read,
    hub=HubSet("uoft-cs/cifar10", column="img", mode="RGB"),
    scale=Scale(mean=(125.3, 123.0, 113.9), std=(63.0, 62.1, 66.7)),
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


build = Cs744
