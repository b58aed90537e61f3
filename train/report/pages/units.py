"""Quantities for readers: `6.7 ms`, `4.37 s`, `6.70 ± 0.12 ms`, `1 Gbit/s`."""

import math
import re

_RATE = re.compile(r"(\d+(?:\.\d+)?)([kmgt]?)bit")  # in the form of a testbed's --rate


def duration(seconds: float) -> str:
    """Three digits, in milliseconds below one second."""
    return f"{seconds:.3g} s" if seconds >= 0.9995 else f"{seconds * 1e3:.3g} ms"


def with_interval(mean_s: float, low_s: float | None, high_s: float | None) -> str:
    """The mean, with half of the interval if there is one."""
    if low_s is None or high_s is None or high_s <= low_s:
        return duration(mean_s)
    scale, unit = (1.0, "s") if mean_s >= 1 else (1e3, "ms")
    half = (high_s - low_s) / 2 * scale
    digits = max(0, 1 - math.floor(math.log10(half)))
    return f"{mean_s * scale:.{digits}f} ± {half:.{digits}f} {unit}"


def link_rate(text: str) -> str:
    """`1gbit` as "1 Gbit/s"; other texts, such as "unlimited", unchanged."""
    found = _RATE.fullmatch(text)
    return f"{found[1]} {found[2].upper() if found[2] != 'k' else 'k'}bit/s" if found else text
