"""Every random generator of a process: seeded, its state as text, and back again.

numpy is imported where its generator is meant, so that `muster.steps` needs torch alone.
"""

import base64
import json
import random

import torch


def hash_seed(*parts: int) -> int:
    """One 63-bit seed from several numbers: neighbouring numbers give unrelated seeds."""
    mixed = 0x9E3779B97F4A7C15
    for part in parts:  # splitmix64's finaliser (Steele, Lea and Flood, 2014)
        mixed = (mixed + part) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed >> 1


def seed(number: int) -> None:
    """Seed python's, numpy's and torch's generators, on all devices."""
    import numpy

    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


def capture() -> str:
    """The state of python's, numpy's and torch's generators."""
    import numpy

    _, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = numpy.random.get_state(legacy=True)
    on_gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None
    state = {
        "python": [list(words), gauss],
        "numpy": [str(name), _text(numpy.asarray(keys).tobytes()), position, has_gauss, cached],
        "torch": _text(torch.get_rng_state().numpy().tobytes()),
        "cuda": None if on_gpu is None else _text(on_gpu.numpy().tobytes()),
    }
    return json.dumps(state)


def restore(text: str) -> None:
    """Have all generators go on from where `capture` found them."""
    import numpy

    state = json.loads(text)
    words, gauss = state["python"]
    random.setstate((3, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    unpacked = numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32)
    numpy.random.set_state((name, unpacked, position, has_gauss, cached))
    torch.set_rng_state(_bytes(state["torch"]))
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(_bytes(state["cuda"]))


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
