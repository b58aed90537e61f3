"""When a run is saved so that it can be continued, and which checkpoint it continues."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from configs.settings.fields import setting

RESETS = ("optimizer", "lr-scheduler", "data")
# Words in the names of metrics that tell which value is best: the lowest, or the highest.
LOWEST = {"loss", "perplexity", "error", "mse", "mae", "rmse", "wer", "cer"}
HIGHEST = {
    "accuracy", "f1", "precision", "recall", "correlation", "pearson", "pearsonr", "spearmanr",
    "bleu", "rouge1", "rouge2", "rougel", "rougelsum", "meteor", "match", "auc",
}  # fmt: skip
DIRECTIONS = {"min": True, "max": False}


class Interval(NamedTuple):
    """Every so many steps, epochs or minutes."""

    every: float
    unit: Literal["step", "epoch", "min"]


class Best(NamedTuple):
    """By which metric a checkpoint is the best, and whether its lowest value is the best."""

    metric: str
    lowest: bool

    def __str__(self) -> str:
        return f"{self.metric}:{'min' if self.lowest else 'max'}"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints a run writes and keeps, and from which one it goes on."""

    checkpoint_every: str = setting(
        "never", "when to write one: N steps, epoch, or Nmin (minutes); also when a run is stopped"
    )
    keep_last: int = setting(2, "how many of the newest checkpoints to keep", least=1)
    keep_best: str | None = setting(
        None, "also keep the best by this metric: accuracy, or with a direction: mine:min, mine:max"
    )
    patience: int | None = setting(
        None, "end the run after this many epochs without a better --keep-best", least=1
    )
    resume: str | None = setting(
        None,
        "continue from a checkpoint: its folder, a run folder, or auto (from --checkpoint-dir)",
    )
    reset_optimizer: bool = setting(False, "resume with a fresh optimizer")
    reset_lr_scheduler: bool = setting(False, "resume, but restart the learning-rate schedule")
    reset_data: bool = setting(False, "resume, but start again with the first sample")
    stop_signal: Literal["USR1", "USR2"] = setting(
        "USR2", "signal that, like TERM and INT, stops a run cleanly after a step"
    )
    save_model: bool = setting(True, "save the trained model to model/ in the run folder")

    def checkpoint_problems(self) -> Iterator[str]:
        """A line for each wrong setting of this class."""
        try:
            self.checkpoint_interval()
        except ValueError:
            yield (
                f"--checkpoint-every {self.checkpoint_every!r}: expected never, a number of steps, "
                "epoch, or minutes such as 10min"
            )
        try:
            self.best()
        except ValueError:
            name = self.keep_best
            yield (
                f"--keep-best {name}: it is not clear whether lower or higher values are better"
                f"\ntip: write {name}:min or {name}:max"
            )
        if self.patience is not None and self.keep_best is None:
            yield (
                f"--patience {self.patience} has no effect without --keep-best"
                "\ntip: add --keep-best METRIC"
            )
        resets = [name for name in RESETS if getattr(self, f"reset_{name.replace('-', '_')}")]
        if resets and self.resume is None:
            yield f"--reset-{resets[0]} has no effect without --resume\ntip: add --resume"

    def best(self) -> Best | None:
        """How to tell which checkpoint is the best; None: none is kept as the best.

        Raises:
            ValueError: --keep-best gives no direction, and the metric's name does not imply one.
        """
        if self.keep_best is None:
            return None
        name, _, direction = self.keep_best.rpartition(":")
        if name and direction in DIRECTIONS:
            return Best(name, DIRECTIONS[direction])
        words = set(re.split(r"[\W_]+", self.keep_best.lower()))
        if bool(words & LOWEST) == bool(words & HIGHEST):
            raise ValueError(self.keep_best)
        return Best(self.keep_best, bool(words & LOWEST))

    def checkpoint_interval(self) -> Interval | None:
        """How often to write a checkpoint; None: never.

        Raises:
            ValueError: --checkpoint-every has none of the allowed forms.
        """
        text = self.checkpoint_every
        if text == "never":
            return None
        if text.endswith("min"):
            interval = Interval(float(text.removesuffix("min")), "min")
        else:
            interval = Interval(1, "epoch") if text == "epoch" else Interval(int(text), "step")
        if not 0 < interval.every < float("inf"):
            raise ValueError(text)
        return interval
