"""What one setting is made of, and the questions that all of them answer alike."""

import math
from collections.abc import Iterator
from dataclasses import field
from typing import Any, Literal

# What a setting changes of a run, beside its name:
# losses     what is computed, and with it the losses
# gradients  what of the gradients is sent: the losses, but not what a step computes
# sending    how gradients are sent: seconds alone; `single` sends none
# sharing    who computes what, and what is done beside the steps: seconds alone
# computing  how the same is computed: seconds alone, but steps are not the same work
# nothing    no number of the run
Affects = Literal["losses", "gradients", "sending", "sharing", "computing", "nothing"]


def setting(default: Any, help: str, *, affects: Affects | None = None, **more: Any) -> Any:
    """A field with the text that --help shows; `aliases` are further flags for it.

    Without `affects`, a setting of the training changes the losses, and one of a launch nothing.
    """
    return field(default=default, metadata={"help": help, "affects": affects, **more})


def flag(name: str) -> str:
    """The spelling of a field on the command line."""
    return "--" + name.replace("_", "-")


def too_low(name: str, value: Any, least: float) -> Iterator[str]:
    """A line where the setting `name` is below `least`, or not finite; None is always right."""
    if value is not None and not (value >= least and math.isfinite(value)):
        yield f"{flag(name)} must be at least {least} (got {value})"


def not_positive(name: str, value: Any) -> Iterator[str]:
    """A line where the setting `name` is not a finite number above 0."""
    if not (value > 0 and math.isfinite(value)):
        yield f"{flag(name)} must be a finite number above 0 (got {value})"


def no_share(name: str, value: Any) -> Iterator[str]:
    """A line where the setting `name` is not at least 0 and below 1; None is always right."""
    if value is not None and not 0 <= value < 1:
        yield f"{flag(name)} must be at least 0 and below 1 (got {value})"
