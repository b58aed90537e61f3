"""Who measures with whom: every pair once, several at a time only where there are many."""

from collections.abc import Iterator, Sequence

ALONE = 16  # up to so many, one pair at a time: nothing else is on the wire


def rounds(ranks: Sequence[int], alone: int = ALONE) -> Iterator[list[tuple[int, int]]]:
    """Every pair of `ranks` once; no rank twice in a round."""
    for together in _tournament(list(ranks)):
        if len(ranks) > alone:
            yield together
        else:
            yield from ([pair] for pair in together)


def _tournament(ranks: list[int]) -> Iterator[list[tuple[int, int]]]:
    """The first stays, the others go around it, as players at tables do."""
    places: list[int | None] = [*ranks, *([None] if len(ranks) % 2 else [])]
    for _ in range(len(places) - 1):
        half = len(places) // 2
        facing = zip(places[:half], reversed(places[half:]), strict=True)
        yield [(one, other) for one, other in facing if one is not None and other is not None]
        places = [places[0], places[-1], *places[1:-1]]
