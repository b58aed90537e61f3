"""What one setting is made of, and the questions that all of them answer alike."""

import math
from collections.abc import Iterator
from dataclasses import field
from typing import Any


def setting(default: Any, help: str, **more: Any) -> Any:
    """A field with the text that --help shows; `aliases` are further flags for it."""
    return field(default=default, metadata={"help": help, **more})


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
