"""Check arguments; each function yields a line for each problem, for `errors.refuse`."""

import math
import operator
import reprlib
from collections.abc import Iterator
from typing import Any


def whole_number(name: str, value: object, least: int | None = None) -> Iterator[str]:
    """A line if `value` is not a whole number, or is below `least`."""
    try:
        whole = operator.index(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError):  # a tensor with several values raises the last
        yield f"{name} is {reprlib.repr(value)}; it must be a whole number"
        return
    if least is not None and whole < least:
        yield f"{name} is {whole}; it must be at least {least}"


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
        amount = float(plain if hasattr(plain, "__float__") else "")  # a string is refused
    except (TypeError, ValueError, RuntimeError, OverflowError):
        yield f"{name} is {reprlib.repr(value)}; it must be a number"
        return
    if above is not None and not (amount > above and math.isfinite(amount)):
        yield f"{name} is {amount:g}; it must be finite and above {above:g}"
    if least is not None and not amount >= least:
        yield f"{name} is {amount:g}; it must be at least {least:g}"
    if most is not None and not amount <= most:
        yield f"{name} is {amount:g}; it must be at most {most:g}"


def methods(name: str, value: object, *required: str) -> Iterator[str]:
    """A line for the required methods that `value` lacks."""
    if missing := [method for method in required if not callable(getattr(value, method, None))]:
        lacks = f"{name} is of type {type(value).__name__}, which has no {' and no '.join(missing)}"
        yield f"{lacks}\ntip: pass an object with {' and '.join(required)}"


def one_of(name: str, value: object, *choices: str) -> Iterator[str]:
    """A line if `value` is none of `choices`."""
    if value not in choices:
        yield f"{name} is {reprlib.repr(value)}; expected one of {', '.join(choices)}"


def kind(name: str, value: object, wanted: type, give: str) -> Iterator[str]:
    """A line if `value` is not of the type `wanted`; `give` is what to pass instead."""
    if not isinstance(value, wanted):
        yield f"{name} is of type {type(value).__name__}\ntip: pass {give}"


def function(name: str, value: object) -> Iterator[str]:
    """A line if `value` cannot be called."""
    if not callable(value):
        yield f"{name} is {reprlib.repr(value)}; it must be a function"
