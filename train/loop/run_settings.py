"""The settings of a run in its checkpoints, and which other settings may continue from them."""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from configs.settings.fields import flag
from configs.settings.sync import SyncingConfig
from configs.settings.train import BatchConfig, LearningConfig, TaskConfig, TrainConfig

# For each restored part, the settings it depends on; its flag --reset-... discards the part.
SETTINGS_OF_PART = {
    "data": ("task", "seed", "batch_size", "train_samples"),
    # --decay changes the optimizer's groups, each of which has its rate in the schedule
    "lr_scheduler": ("lr", "schedule", "warmup_steps", "power", "end_lr", "decay"),
    "optimizer": ("optimizer",),
}
# A checkpoint stores the settings of these classes, except the ones that determine how long to
# train, or in which way the same losses are computed.
COMPARED = (TaskConfig, LearningConfig, BatchConfig, SyncingConfig)
NOT_COMPARED = frozenset(
    "epochs max_steps schedule_steps eval_batch_size data_dir tokenizer pad length_balance split "
    "compile bucket_mb overlap sparse_rows equalize_every".split()
)
OBJECTS_OF_PART = {"lr_scheduler": ("schedule",), "optimizer": ("optimizer", "precision")}


class RunSettings:
    """An object of a checkpoint: the settings that change losses, and what follows from them."""

    def __init__(
        self, config: TrainConfig, samples: int, schedule_end: int, tell: Callable[[str], None]
    ) -> None:
        """`samples`: size of the training set; `schedule_end`: the step until which rates decay."""
        self._config = config
        self._samples = samples
        self._end = schedule_end
        self._tell = tell

    def state_dict(self) -> dict[str, Any]:
        return {
            "settings": compared_settings(self._config),
            "samples": self._samples,
            "schedule_end": self._end,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Report the permitted differences from the checkpoint's settings."""
        config = self._config
        was = state["schedule_end"]
        if self._is_moved(was) and config.reset_data:
            self._tell(f"the learning rate now decays until step {self._end}, instead of {was}")
        differences = [
            f"{flag(name)} {_text_of(state['settings'][name])} → {_text_of(now)}"
            for name, now in compared_settings(config).items()
            if (before := state["settings"].get(name, now)) != now
            and (name != "sync" or "local_sgd" in (before, now))  # the others are exact
        ]
        if differences:
            listed = ", ".join(differences)
            self._tell(f"settings changed since the checkpoint: {listed}")

    def resume_problems(self, state: dict[str, Any]) -> Iterator[str]:
        """Yield a line for each difference from the checkpoint that a restored part forbids."""
        config = self._config
        for part, names in SETTINGS_OF_PART.items():
            for name in names if part not in parts_to_reset(config) else ():
                now = getattr(config, name)
                was = state["settings"].get(name, now)  # older checkpoints do not store all
                if was != now:
                    remedy = f"--reset-{part.replace('_', '-')}"
                    yield (
                        f"{flag(name)} is {now}, but was {was} in the checkpoint"
                        f"\ntip: use {was}, or add {remedy}"
                    )
        if state["samples"] != self._samples and not config.reset_data:
            yield (
                f"the training set has {self._samples} samples, but had {state['samples']} in "
                "the checkpoint"
                "\ntip: to resume with the new data, add --reset-data"
            )
        was = state["schedule_end"]
        if self._is_moved(was) and not config.reset_data:
            yield (
                f"the checkpoint's learning rate decays until step {was}, but with --epochs "
                f"{config.epochs} and --schedule-steps {config.schedule_steps or 'unset'} it "
                f"would decay until step {self._end}"
                f"\ntip: add --schedule-steps {was}, or --reset-lr-scheduler"
            )

    def _is_moved(self, was: int | None) -> bool:
        """Whether the rate would jump, because its decay now ends at another step."""
        config = self._config
        is_fixed = config.schedule == "constant" or config.reset_lr_scheduler
        return was not in (self._end, None) and not is_fixed  # older checkpoints do not store it


def compared_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the settings that change losses, which a checkpoint stores for a later comparison."""
    names = [
        setting.name
        for settings in COMPARED
        for setting in fields(settings)
        if setting.name not in NOT_COMPARED
    ]
    return {name: getattr(config, name) for name in names}


def _text_of(value: object) -> str:
    return "unset" if value is None else str(value)


def parts_to_reset(config: TrainConfig) -> frozenset[str]:
    """The parts of a checkpoint that are not to be restored."""
    return frozenset(part for part in SETTINGS_OF_PART if getattr(config, f"reset_{part}"))


def objects_to_reset(config: TrainConfig) -> set[str]:
    """The names of the objects that are not to be restored."""
    return {name for part in parts_to_reset(config) for name in OBJECTS_OF_PART.get(part, ())}
