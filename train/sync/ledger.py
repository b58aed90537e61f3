"""What this rank hands to collectives: a step's gradients one by one, all in all by operation."""

from collections import Counter
from typing import NamedTuple

from torch import Tensor


class Collective(NamedTuple):
    """One collective, as this rank took part in it."""

    operation: str  # torch's name of it
    shape: tuple[int, ...]
    dtype: str
    nbytes: int  # of the tensor that this rank handed over


class CollectiveLedger:
    """Kept by one rank; bytes of one operation can be added up, since every algorithm is linear."""

    def __init__(self) -> None:
        self.step: list[Collective] = []  # the gradient collectives since `take_step`
        self.gradients: Counter[str] = Counter()  # bytes by operation, from the beginning
        self.control: Counter[str] = Counter()  # likewise all else: losses, flags, replicas

    def gradient(self, operation: str, tensor: Tensor) -> None:
        """Note a collective on gradients."""
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.add(Collective(operation, tuple(tensor.shape), dtype, tensor.nbytes))

    def add(self, collective: Collective) -> None:
        """Note a collective on gradients that torch made by itself."""
        self.step.append(collective)
        self.gradients[collective.operation] += collective.nbytes

    def take_step(self) -> list[Collective]:
        """The gradient collectives since this was last asked."""
        taken, self.step = self.step, []
        return taken
