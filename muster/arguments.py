"""Problems of an argument, a line for each, for `errors.refuse`."""

import math
import operator
import reprlib
from collections.abc import Iterator
from typing import Any


def whole_number(name: str, value: object, least: int | None = None) -> Iterator[str]:
    """A line if `value` is not a whole number, or is below `least`."""
    try:
        found = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # a tensor with several values raises the last
        yield f"{name} is {reprlib.repr(value)}; it must be a whole number"
        return
    if least is not None and found < least:
        yield f"{name} is {found}; it must be at least {least}"


def number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
) -> Iterator[str]:
    """A line if `value` is not a number (a tensor with one value is), or is beyond a limit.

    nan is beyond every limit. With `above`, infinity is refused too.
    """
    try:
        plain = value.detach() if hasattr(value, "detach") else value
        found = float(plain if hasattr(plain, "__float__") else "")  # a string is refused
    except (TypeError, ValueError, RuntimeError, OverflowError):
        yield f"{name} is {reprlib.repr(value)}; it must be a number"
        return
    if above is not None and not (found > above and math.isfinite(found)):
        yield f"{name} is {found:g}; it must be finite and above {above:g}"
    if least is not None and not found >= least:
        yield f"{name} is {found:g}; it must be at least {least:g}"
    if most is not None and not found <= most:
        yield f"{name} is {found:g}; it must be at most {most:g}"


def methods(name: str, value: object, *wanted: str) -> Iterator[str]:
    """A line for the required methods that `value` lacks."""
    if missing := [one for one in wanted if not callable(getattr(value, one, None))]:
        lacks = f"{name} is a {type(value).__name__}, which has no {' and no '.join(missing)}"
        yield f"{lacks}; give an object that has {' and '.join(wanted)}"


def one_of(name: str, value: object, *known: str) -> Iterator[str]:
    """A line if `value` is none of the known words."""
    if value not in known:
        yield f"{name} is {reprlib.repr(value)}; known: {', '.join(known)}"


def kind(name: str, value: object, wanted: type, give: str) -> Iterator[str]:
    """A line if `value` is not of the type that is wanted; `give`: what to give."""
    if not isinstance(value, wanted):
        yield f"{name} is a {type(value).__name__}; give {give}"


def function(name: str, value: object) -> Iterator[str]:
    """A line if `value` cannot be called."""
    if not callable(value):
        yield f"{name} is {reprlib.repr(value)}; it must be a function"
