"""Ranks exchange values without a pickle: what a stranger sends in between runs nothing."""

import math
import pickle
import random

import numpy as np
import pytest
import torch

from tests.train.workers import results_of
from train.distributed import agreement
from train.distributed.plain_objects import decoded, encoded
from train.model import rng


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return (
            first.dtype == second.dtype
            and first.shape == second.shape
            and torch.equal(first, second)
        )
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            equal(first[key], second[key]) for key in first
        )
    if isinstance(first, list | tuple):
        return type(first) is type(second) and all(map(equal, first, second))
    return type(first) is type(second) and (
        first == second or (first != first and second != second)
    )


VALUES = [
    None, True, 7, 2**70, -0.0, math.nan, math.inf, "é\ud800\n", [], (), {}, [1, (2, [3.5])],
    {1: "a", "1": (None,), (2, "b"): {}}, {"tuple": 1}, {"mapping": [], "tensor": ["x", []]},
    torch.arange(6).reshape(2, 3), torch.tensor(1.5), torch.empty(0, 3), torch.tensor([True]),
    {"a": torch.ones(3, dtype=torch.uint8), "b": [torch.ones(5, dtype=torch.bfloat16)]},
    (torch.zeros(1, dtype=torch.int8), torch.tensor([0.1], dtype=torch.float64)),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_plain_value_is_decoded_unchanged(value):
    assert equal(decoded(encoded(value)), value)


def test_generator_states_are_decoded_unchanged():
    state = rng.capture()
    assert equal(decoded(encoded(state)), state)
    numbers = random.random(), np.random.rand(), torch.rand(1).item()
    rng.restore(decoded(encoded(state)))
    assert numbers == (random.random(), np.random.rand(), torch.rand(1).item())


ARRAYS = [
    np.float64(0.5), np.int64(3), np.bool_(True), np.array([[1, 2]]), np.array([]), np.array(1.5),
    np.array(["a", "ähnlich"]), np.arange(6.0).reshape(2, 3).T, [{"f1": np.float32(0.1)}],
]  # fmt: skip


@pytest.mark.parametrize("value", ARRAYS, ids=range(len(ARRAYS)))
def test_numpy_values_are_decoded_unchanged(value):
    assert repr(decoded(encoded(value))) == repr(value)


def test_value_without_a_plain_form_is_refused_before_sending():
    with pytest.raises(TypeError, match="a ZeroDivisionError cannot be sent to other ranks"):
        encoded({"why": [ZeroDivisionError()]})


def framed(text):
    data = len(text).to_bytes(8, "big") + text
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


@pytest.mark.parametrize("data", [
    framed(b"{"), framed(b'{"tensor": ["load", [1]]}'), framed(b'{"tensor": ["int64", [9]]}'),
    framed(b'{"tensor": ["int8", [-1]]}'), framed(b'{"other": []}'), framed(b"{}"),
    framed(b'{"tuple": 1}'), framed(b'{"mapping": [[[], 1]]}'), framed(b'{"tensor": 1}'),
    framed(b"[" * 5000 + b"]" * 5000), framed(b"\xff"), torch.full((100,), 255, dtype=torch.uint8),
    torch.empty(0, dtype=torch.uint8), framed(b'{"array": ["O", [0]]}'),
    framed(b'{"array": ["<i8", [1]]}'), framed(b'{"number": ["x", []]}'),
], ids=range(16))  # fmt: skip
def test_bytes_of_no_value_are_refused(data):
    with pytest.raises(ValueError):
        decoded(data)


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a stranger ran')",))


def exchange_with_a_stranger(ranks, how):
    """Rank 1 sends a pickle that runs code, in the form of torch's object collectives."""
    if ranks.rank:
        evil = framed(pickle.dumps(Evil()))
        agreement.encoded = lambda value: evil
    act = {
        "gather": lambda: agreement.gather(2, "well"),
        "share": lambda: agreement.share(ranks.rank, 2, 1, "well"),
        "of_each": lambda: agreement.of_each(2, lambda: "well"),
    }[how]
    try:
        return repr(act())
    except agreement.PeerFailed as error:
        return str(error)


@pytest.mark.parametrize("how", ["gather", "share", "of_each"])
def test_pickle_of_a_stranger_is_not_run(tmp_path, how):
    found = results_of(exchange_with_a_stranger, 2, tmp_path, how)
    assert "rank 1 has sent no value of ours" in found[0], found


def share_and_gather(ranks):
    value = {"rank": ranks.rank, "tensors": [torch.full((2 + ranks.rank,), ranks.rank)]}
    gathered = agreement.gather(2, value)
    return gathered, agreement.share(ranks.rank, 2, 1, value)


def test_values_of_different_sizes_are_gathered_and_shared(tmp_path):
    values = [{"rank": rank, "tensors": [torch.full((2 + rank,), rank)]} for rank in (0, 1)]
    for gathered, shared in results_of(share_and_gather, 2, tmp_path):
        assert equal(gathered, values) and equal(shared, values[1])
