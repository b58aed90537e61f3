"""Which rank is slow, judged by when it comes to collectives, for programs without records.

How it works: all ranks end a collective at about the same time, when the last has come. What a rank
needs from there until it comes to the next one is its own time; what is left until the others have
come, it waits. Step times are alike on all ranks and say nothing. Times of different nodes are put
on one clock, that of node 0, by the offsets that agents have measured.
"""

from collections.abc import Mapping
from statistics import median

LEAST = 10  # collectives that all ranks have come to: with fewer nothing can be said
SLOW = 1.25  # times the median, to be called slow
SHORT_S = 0.002  # what differs by less, on average, is the clocks' error


def own_times(arrivals: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Seconds that each rank has computed between the collectives that all have come to.

    `arrivals`: for each rank, when it came to each collective, by the collective's number, in
    seconds of one clock. Empty where there are fewer than `LEAST` in a row.
    """
    if len(arrivals) < 2:
        return {}
    common = sorted(set.intersection(*(set(one) for one in arrivals.values())))
    pairs = [(k, k + 1) for k in common if k + 1 in common]
    if len(pairs) < LEAST:
        return {}
    ended = {k: max(one[k] for one in arrivals.values()) for k in common}
    return {
        rank: sum(max(0.0, one[after] - ended[before]) for before, after in pairs) / len(pairs)
        for rank, one in arrivals.items()
    }


def slow_ones(arrivals: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """The ranks whose own time is at least `SLOW` times the median of all, and how many times."""
    own = own_times(arrivals)
    usual = median(own.values()) if own else 0.0
    return {
        rank: seconds / max(usual, 1e-9)
        for rank, seconds in own.items()
        if seconds - usual > SHORT_S and seconds > SLOW * usual
    }
