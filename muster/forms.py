"""Whether a value, as JSON has it, has a form: for what nodes say, and for records in files.

A form is a type, None, a tuple of forms of which one fits, a list with the form of each element, or
a dict. A dict has keys, each with its form; a key that ends with "?" may be missing, and with the
key `...` there may be others. A function is a form, too: it says whether a value fits.
"""

import math
from collections.abc import Callable
from typing import Any

MAYBE = "?"  # at the end of a key
MORE = ...  # a key: there may be others


def fits(value: Any, form: Any) -> bool:
    """Whether a value is of this form; a number with a point is finite, and True is no number."""
    if isinstance(form, tuple):
        return any(fits(value, kind) for kind in form)
    if isinstance(form, list):
        return isinstance(value, list) and all(fits(element, form[0]) for element in value)
    if isinstance(form, dict):
        return isinstance(value, dict) and _has_keys(value, form)
    if form is None or isinstance(form, type):
        is_kind = value is None if form is None else type(value) is form
        return is_kind and not (form is float and not math.isfinite(value))
    return bool(form(value))


def anything(value: object) -> bool:
    return True


def dict_of(keys: Any, values: Any) -> Callable[[Any], bool]:
    """The form of a dict of any keys, each of the form `keys`, with values of the form `values`."""
    return lambda value: (
        isinstance(value, dict)
        and all(fits(key, keys) and fits(each, values) for key, each in value.items())
    )


def _has_keys(value: dict[str, Any], form: dict[Any, Any]) -> bool:
    kinds = {key.removesuffix(MAYBE): kind for key, kind in form.items() if key is not MORE}
    needed = {key for key in form if key is not MORE and not key.endswith(MAYBE)}
    if not needed <= value.keys() or (MORE not in form and not value.keys() <= kinds.keys()):
        return False
    return all(fits(value[key], kind) for key, kind in kinds.items() if key in value)
