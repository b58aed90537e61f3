"""Image classification: from files or the Hub to batches, a loss and an accuracy."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn
from torch.nn.functional import cross_entropy

from configs.settings.train import TrainConfig
from train.evaluation.metrics import Confusion
from train.tasks.base import Batch, Datasets, Metric, Output, Samples, Task, in_float32
from train.tasks.vision.image_hub import HubSet
from train.tasks.vision.images import Augmented, Image, Images, Scale


@dataclass(frozen=True, kw_only=True)
class Spec:
    """How one image set differs from another."""

    read: Callable[[Path], dict[str, Images]]  # the sets "train" and "test" of a folder
    hub: HubSet
    scale: Scale
    classes: int
    augment: bool = False


class ImageTask(Task):
    """One image set; trained on its set "train", evaluated on "test"."""

    def __init__(self, spec: Spec, config: TrainConfig) -> None:
        self.spec, self.config = spec, config
        self._augmented: Augmented | None = None

    def prepare(self) -> None:
        """Unpack the Hub's images into the cache; files only have to be right.

        Raises:
            UsageError: files are missing or wrong, or the Hub cannot be reached.
        """
        if self.config.data_dir is None:
            self.spec.hub.prepare(self.config.cache_dir)
        else:
            self.spec.read(self.config.data_dir)

    def is_prepared(self) -> bool:
        """Whether nothing is left to unpack."""
        if self.config.data_dir is None:
            return self.spec.hub.is_prepared(self.config.cache_dir)
        return True  # reading files takes no longer than asking whether they are right

    def build_datasets(self) -> Datasets:
        if self.config.data_dir is None:
            sets = self.spec.hub.read(self.config.cache_dir)
        else:
            sets = self.spec.read(self.config.data_dir)
        train = sets["train"]
        if self.spec.augment:
            train = self._augmented = Augmented(train, self.config.seed)
        return Datasets(train, {"": sets["test"]})

    def start_epoch(self, epoch: int) -> None:
        if self._augmented is not None:
            self._augmented.epoch = epoch

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A module from images (n, channels, height, width) to logits (n, classes)."""

    def collate(self, samples: Sequence[Image]) -> Batch:
        """n images as float32 (n, channels, height, width), and labels (n,)."""
        return self.spec.scale.collate(samples)

    def forward(self, model: nn.Module, batch: Batch) -> Output:
        """The mean cross entropy, and logits (n, classes)."""
        logits = in_float32(model(batch["images"]))
        return Output(cross_entropy(logits, batch["labels"]), logits)

    def metric(self, evaluation_set: Samples) -> Metric:
        return Confusion(self.spec.classes, ("accuracy",))
