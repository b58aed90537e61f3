"""Divide samples of unequal length so that ranks get equal numbers of tokens, with padding.

A global batch is sorted by length. Each rank's part is a run of neighbours in it, and so is each of
its micro-batches, which is padded to its longest sample. The samples of the batch stay the same,
and so do their mean, the loss and the gradient.

An example: six samples of these lengths on two equal ranks. Padding counts, so a run of n samples
costs n times its longest one.

    lengths            4   4   5   6  12  16
    three each        |rank 0: 3 * 5| |rank 1: 3 * 16|         slowest: 48 tokens
    best cut          |rank 0: 4 * 6    | |rank 1: 2 * 16|     slowest: 32 tokens

The search for the best cut: for a limit of tokens, each rank in turn takes the longest run within
the limit (`_fill`). If samples remain, the limit was too low. Bisection finds the lowest sufficient
limit (`_improved`). This is repeated for each number of micro-batches, as long as their fixed costs
alone are below the best cut so far. It is also repeated for a few orders of the ranks (`_orders`):
with unequal shares it matters which rank takes the short samples.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

# The fixed cost of a forward and backward pass, in tokens: fitted to the times of passes over 16 to
# 2,048 tokens. On a CPU core it was 68 for 6 layers of 384, and 112 for the quickstart's BERT. For
# a GPU it is an estimate: 15 ms of launches, at a million tokens a second.
PASS_TOKENS = {"cpu": 100.0, "cuda": 15000.0}
PRECISION = 5e-3  # of the search for the best cut
TOLERANCE = 1 + 1e-9  # a factor for the limit, so that rounding errors do not refuse an exact fit

Part = list[range]  # of one rank: its micro-batches, as runs in the sorted batch


@dataclass(frozen=True)
class Cut:
    """A division of a batch with sample lengths `widths` (M,), ascending; padding counts."""

    widths: Sequence[int]
    shares: Sequence[float]  # of the tokens, by rank; a share of 0 gets none, and some are above 0
    pass_tokens: float  # fixed cost of a micro-batch
    least: int = 1  # least number of micro-batches of a rank, if it has enough samples

    def best(self, plain: Sequence[tuple[int, int]]) -> list[Part]:
        """The part of each rank; the slowest rank has as few tokens as the search can reach.

        `plain` is the division that ignores lengths: for each rank, the number of samples and the
        longest length. With `least` 1 the slowest rank has no more tokens than in `plain`.
        """
        best_parts: list[Part] = []
        best_cost = math.inf
        for passes in range(self.least, max(self.least, len(self.widths)) + 1):
            fixed = passes * self._pass_cost
            if self._floor + fixed >= best_cost:
                break
            for order in self._orders(plain):
                high = best_cost - fixed if best_parts else self._slowest_of(plain)
                parts = self._fill(order, passes, high)
                while not parts and not best_parts:
                    high *= 1.1
                    parts = self._fill(order, passes, high)
                if parts:
                    parts = self._improved(parts, order, passes)
                    cost = self._slowest(parts, self._pass_cost)
                    if cost < best_cost:
                        best_parts = parts
                        best_cost = cost
        return best_parts

    @cached_property
    def _pass_cost(self) -> float:
        """The fixed cost of a micro-batch, divided by the mean of all shares above 0."""
        return self.pass_tokens * sum(share > 0 for share in self.shares) / math.fsum(self.shares)

    @cached_property
    def _floor(self) -> float:
        """Tokens divided by share, if all ranks are busy until the end and nothing is padding."""
        return sum(self.widths) / math.fsum(self.shares)

    def _orders(self, plain: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
        """Orders in which the ranks take their runs, from the shortest sample to the longest.

        With unequal shares, the best order depends on the lengths. If ranks are ordered by their
        longest sample in `plain`, each can have as many samples as in `plain`, and no longer ones.
        """
        ranks = [rank for rank, share in enumerate(self.shares) if share > 0]
        if len({self.shares[rank] for rank in ranks}) == 1:
            return [tuple(ranks)]
        keys = (
            self.shares.__getitem__,
            lambda rank: -self.shares[rank],
            lambda rank: plain[rank][1],
        )
        return list(dict.fromkeys(tuple(sorted(ranks, key=key)) for key in keys))

    def _improved(self, parts: list[Part], order: Sequence[int], passes: int) -> list[Part]:
        """`parts`, or a better division that bisection finds."""
        low = self._floor
        high = self._slowest(parts)
        while high - low > PRECISION * low:
            middle = (low + high) / 2
            better = self._fill(order, passes, middle)
            if better:
                parts = better
                high = min(middle, self._slowest(better))
            else:
                low = middle
        return parts

    def _fill(self, order: Sequence[int], passes: int, most: float) -> list[Part]:
        """Give each rank as many samples as `most` times its share allows; [] if some remain."""
        parts: list[Part] = [[] for _ in self.shares]
        start = 0
        for rank in order:
            room = most * self.shares[rank] * TOLERANCE
            for left in range(passes, 0, -1):
                end = self._reach(start, room / left)
                if end > start:
                    parts[rank].append(range(start, end))
                    room -= (end - start) * self.widths[end - 1]
                    start = end
        return parts if start == len(self.widths) else []

    def _reach(self, start: int, tokens: float) -> int:
        """The end of the longest run from `start` with at most `tokens`."""
        ends = range(start + 1, len(self.widths) + 1)
        return start + bisect_right(
            ends, tokens, key=lambda end: (end - start) * self.widths[end - 1]
        )

    def _slowest(self, parts: Sequence[Part], pass_cost: float = 0.0) -> float:
        """The slowest rank's tokens divided by its share; each pass also counts `pass_cost`."""
        return max(
            sum(len(run) * self.widths[run[-1]] for run in part) / share + len(part) * pass_cost
            for part, share in zip(parts, self.shares, strict=True)
            if share > 0
        )

    def _slowest_of(self, plain: Sequence[tuple[int, int]]) -> float:
        return max(
            size * width / share
            for (size, width), share in zip(plain, self.shares, strict=True)
            if share > 0
        )
