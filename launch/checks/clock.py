"""A node's clock against the one here, corrected by half of the way there and back."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Ping:
    """When a node was asked and heard, by the clock here, and what its own clock said."""

    asked_unix_s: float
    heard_unix_s: float
    node_unix_s: float

    @property
    def round_trip_s(self) -> float:
        return self.heard_unix_s - self.asked_unix_s

    @property
    def skew_s(self) -> float:
        """How far the node's clock is ahead, to within half the round trip."""
        return self.node_unix_s - (self.asked_unix_s + self.heard_unix_s) / 2


def skew_s(pings: Sequence[Ping]) -> float | None:
    """By the quickest of them: the one that knows it best."""
    return min(pings, key=lambda ping: ping.round_trip_s).skew_s if pings else None
