"""One column of a metric's input, as bytes and a few plain facts: nothing is pickled.

Arrays of numbers travel as they lie in memory, so that a large set costs no more than its bytes;
so do lists of numbers of one kind. Texts, lists of lists and dicts travel as JSON.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

NUMBERS = {int: "<i8", float: "<f8", bool: "|b1"}  # what a list of each travels as


class Packed(NamedTuple):
    """This rank's part of a column."""

    rows: int
    dtype: str  # numpy's, with the order of its bytes; "": JSON
    shape: tuple[int, ...]
    is_list: bool  # whether it was a list, and is to be one again
    data: Tensor  # uint8 (bytes,)

    @property
    def facts(self) -> tuple[int, str, tuple[int, ...], bool, int]:
        """All but the data, of which there is the number of bytes."""
        return (*self[:4], len(self.data))


def pack(values: Any) -> Packed:
    """A tensor, an array, or anything with one entry per sample; None: no samples.

    Raises:
        TypeError: it holds what is neither a number, a text, a list nor a dict.
    """
    if values is None:
        return Packed(0, "", (), True, as_bytes(b""))
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point() and values.itemsize < 4:
            values = values.float()  # numpy knows no bfloat16
        values = values.numpy()
    if np.isscalar(values) or isinstance(values, Mapping):
        raise TypeError(f"it is one {type(values).__name__}, not one entry per sample")
    is_list = not isinstance(values, np.ndarray)
    array = _as_array(list(values)) if is_list else values
    if isinstance(array, np.ndarray):
        if array.ndim == 0:
            raise TypeError("it is one number, not one entry per sample")
        if array.dtype.kind in "biuf":
            data = torch.from_numpy(np.require(array, None, ["C", "W"]).reshape(-1).view(np.uint8))
            return Packed(len(array), array.dtype.str, array.shape, is_list, data)
        array = array.tolist()
    text = json.dumps(array, default=_plain)
    return Packed(len(array), "", (), is_list, as_bytes(text.encode()))


def unpack(packed: Packed) -> np.ndarray | list[Any]:
    """What was packed."""
    if not packed.dtype:
        found: list[Any] = json.loads(as_text(packed.data) or "[]")
        return found
    data: np.ndarray = packed.data.numpy()
    array = data.view(np.dtype(packed.dtype)).reshape(packed.shape)
    values: list[Any] = array.tolist() if packed.is_list else []
    return values if packed.is_list else array


def joined(parts: Sequence[np.ndarray | list[Any]]) -> np.ndarray | list[Any]:
    """The parts end to end: an array where all are arrays of one kind and width."""
    some = [part for part in parts if len(part)] or [parts[0]]
    arrays = [part for part in some if isinstance(part, np.ndarray)]
    if len(arrays) == len(some) and len({(one.dtype, one.shape[1:]) for one in arrays}) == 1:
        return np.concatenate(arrays)
    return [
        row for part in some for row in (part.tolist() if isinstance(part, np.ndarray) else part)
    ]


def in_order(column: np.ndarray | list[Any], chosen: np.ndarray) -> np.ndarray | list[Any]:
    """The rows `chosen` (n,) of a column, in that order."""
    if isinstance(column, np.ndarray):
        rows: np.ndarray = column[chosen]
        return rows
    return [column[at] for at in chosen.tolist()]


def to_plain(value: Any) -> Any:
    """A metric's result as JSON has it; dicts with keys other than texts stay what they are.

    Numbers of numpy and torch become Python's, arrays and tuples become lists.

    Raises:
        TypeError: there is something else in it.
    """
    if isinstance(value, Mapping):
        return {"pairs": [[to_plain(key), to_plain(one)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return [to_plain(one) for one in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return to_plain(_plain(value))


def from_plain(value: Any) -> Any:
    """What `to_plain` was given."""
    if isinstance(value, dict):
        return {from_plain(key): from_plain(one) for key, one in value["pairs"]}
    return [from_plain(one) for one in value] if isinstance(value, list) else value


def as_bytes(data: bytes) -> Tensor:
    """uint8 (bytes,), of which there may be none."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0).byte()


def as_text(data: Tensor) -> str:
    """What such bytes spell."""
    return data.numpy().tobytes().decode()


def _as_array(values: list[Any]) -> np.ndarray | list[Any]:
    """The numbers of a list as an array, where all are of one of Python's own kinds."""
    kinds = set(map(type, values))
    if len(kinds) != 1 or (kind := kinds.pop()) not in NUMBERS:
        return values
    try:
        return np.array(values, dtype=NUMBERS[kind])
    except OverflowError:  # beyond 64 bits
        return values


def _plain(value: Any) -> Any:
    """What JSON has no word for: tensors, arrays, numpy's numbers, and other iterables of them."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, bytes | bytearray):
        return list(value)
    raise TypeError(f"it holds a {type(value).__name__}; give numbers, texts, or lists of them")
