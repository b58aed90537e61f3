"""Values as bytes for other ranks: JSON, with the data of tensors and arrays behind it.

Pickles are not used: torch's ports have no password, and to unpickle what a stranger sends is to
run what the stranger wants. What is read here may be wrong, but it runs nothing.

    8 bytes      the length of the JSON
    JSON         null, numbers, texts and lists are themselves; others are {"kind": [...]}
    raw bytes    of all tensors and arrays, one after the other
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

LENGTH_BYTES = 8
TUPLE = "tuple"
MAPPING = "mapping"
TENSOR = "tensor"
ARRAY = "array"
NUMBER = "number"
KINDS = "biufcSUmM"  # of numpy's types: those without objects


def encoded(value: Any) -> Tensor:
    """The bytes of a value: of None, numbers, texts, lists, tuples, dicts, tensors, numpy's arrays.

    Raises:
        TypeError: a part of it is of another type.
    """
    parts: list[Tensor] = []
    text = json.dumps(_to_json(value, parts)).encode()
    begin = bytearray(len(text).to_bytes(LENGTH_BYTES, "big") + text)
    return torch.cat([torch.frombuffer(begin, dtype=torch.uint8), *parts])


def decoded(data: Tensor) -> Any:
    """The value in `encoded`'s bytes; tensors are in CPU memory.

    Raises:
        ValueError: these are no such bytes.
    """
    end = LENGTH_BYTES + int.from_bytes(bytes(data[:LENGTH_BYTES].tolist()), "big")
    try:
        text = data[LENGTH_BYTES:end].numpy().tobytes()
        return _Reader(data[end:]).value(json.loads(text))
    except (AttributeError, KeyError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(str(error)[:200]) from None


def _to_json(value: Any, parts: list[Tensor]) -> Any:
    """`value` as JSON has it; the data of its tensors is appended to `parts`."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value).__module__ == "numpy" and value.dtype.kind in KINDS:  # it need not be installed
        if value.size:
            parts.append(torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8))
        is_number = not hasattr(value, "__setitem__")
        return {NUMBER if is_number else ARRAY: [value.dtype.str, list(value.shape)]}
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [_to_json(item, parts) for item in value]
    if isinstance(value, tuple):
        return {TUPLE: [_to_json(item, parts) for item in value]}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {MAPPING: [[_to_json(key, parts), _to_json(item, parts)] for key, item in pairs]}
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        parts.append(plain.reshape(-1).view(torch.uint8))
        return {TENSOR: [str(plain.dtype).removeprefix("torch."), list(plain.shape)]}
    raise TypeError(f"a {type(value).__name__} cannot be sent to other ranks")


class _Reader:
    """Makes values of JSON, and takes the data of their tensors in the order of `_to_json`."""

    def __init__(self, rest: Tensor) -> None:
        self._rest = rest

    def value(self, raw: Any) -> Any:
        if isinstance(raw, list):
            return [self.value(item) for item in raw]
        if not isinstance(raw, dict):
            return raw
        ((kind, inside),) = raw.items()
        if kind == TUPLE:
            return tuple(self.value(item) for item in inside)
        if kind == MAPPING:
            return {self.value(key): self.value(item) for key, item in inside}
        if kind == TENSOR:
            return self._tensor(*inside)
        if kind in (ARRAY, NUMBER):
            array = self._array(*inside)
            return array if kind == ARRAY else array[()]
        raise ValueError(kind)

    def _tensor(self, name: str, shape: list[int]) -> Tensor:
        dtype = getattr(torch, name)
        if not isinstance(dtype, torch.dtype):
            raise TypeError(name)
        return self._taken(shape, dtype.itemsize).view(dtype).reshape(shape)

    def _array(self, name: str, shape: list[int]) -> Any:
        import numpy

        dtype = numpy.dtype(name)
        if dtype.kind not in KINDS:
            raise TypeError(name)
        data = self._taken(shape, dtype.itemsize).numpy().tobytes()
        return numpy.ndarray(shape, dtype, data).copy()

    def _taken(self, shape: list[int], item_bytes: int) -> Tensor:
        """A copy of the next data: a part of other data may begin at an odd address."""
        if any(size < 0 for size in shape):
            raise ValueError(shape)
        end = math.prod(shape) * item_bytes
        data = self._rest[:end]
        self._rest = self._rest[end:]
        return data.clone()
