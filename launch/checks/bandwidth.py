"""What the workers measured, as tables, and in words what it says of the slowest way."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

Measured = Mapping[str, Any]
# A pair this far below the median of all is worth a line: less is noise of busy machines.
SLOW = 0.5
# What nccl-tests prints, in its order.
COLUMNS = ("size(B)", "count", "type", "redop", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong")


def names(measured: Measured, nodes: Mapping[int, str]) -> list[str]:
    """What to call each rank: its node, with the rank where a node has several."""
    of_rank = [nodes.get(rank, str(host)) for rank, host in enumerate(measured["hosts"])]
    if len(set(of_rank)) == len(of_rank):
        return of_rank
    return [f"{name}.{rank}" for rank, name in enumerate(of_rank)]


def tables(measured: Measured, called: Sequence[str]) -> list[Table]:
    """The pairs, where there are several nodes, and the collectives."""
    return [*([_matrix(measured, called)] if measured["pairs"] else []), _collectives(measured)]


def verdict(measured: Measured, called: Sequence[str]) -> tuple[str, list[str]]:
    """The slowest way in words, and a line for everything that was wrong."""
    problems = [
        f"{one['name']} of {one['bytes']} bytes: {one['wrong']} values are wrong; something "
        "between the nodes changes data: check memory, cables and drivers"
        for one in measured["collectives"]
        if one["wrong"]
    ]
    ways = best(measured)
    if not ways:
        return "one node: no network to measure", problems
    return _words({f"{called[a]}-{called[b]}": rate for (a, b), rate in ways.items()}), problems


def best(measured: Measured) -> dict[tuple[int, int], float]:
    """Gbit/s from each rank to each other, at the size that the way carries best."""
    found: dict[tuple[int, int], float] = {}
    for one in measured["pairs"]:
        pair = (one["from"], one["to"])
        found[pair] = max(found.get(pair, 0.0), one["gbit_s"])
    return found


def _words(ways: Mapping[str, float]) -> str:
    rates = sorted(ways.values())
    middle = statistics.median(rates)
    slow = {pair: rate for pair, rate in ways.items() if rate < SLOW * middle}
    if not slow:
        pair = min(ways, key=lambda one: ways[one])
        return f"all {len(ways)} ways carry {_span(rates)} Gbit/s; the slowest is {pair}"
    others = [rate for pair, rate in ways.items() if pair not in slow]
    ordered = sorted(slow, key=lambda pair: slow[pair])
    worst = f"{ordered[0]} carries {slow[ordered[0]]:.3g} Gbit/s"
    more = f", and {len(slow) - 1} more are slow ({', '.join(ordered[1:4])})" if slow.keys() - {ordered[0]} else ""  # noqa: E501  # fmt: skip
    culprit = _common(ordered)
    who = f"; all of them are with {culprit}: look at its link" if culprit else ""
    return f"the pair {worst}{more}; others {_span(others)}{who}"


def _common(pairs: Sequence[str]) -> str | None:
    """The node that all these pairs share, where there are several."""
    ends = [set(pair.split("-")) for pair in pairs]
    shared = set.intersection(*ends)
    return shared.pop() if len(set(pairs)) > 2 and len(shared) == 1 else None


def _span(rates: Sequence[float]) -> str:
    low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
    return low if low == high else f"{low} to {high}"


def _matrix(measured: Measured, called: Sequence[str]) -> Table:
    ways = best(measured)
    ranks = sorted({rank for pair in ways for rank in pair})
    table = Table("from \\ to", *(called[rank] for rank in ranks), box=box.SIMPLE, pad_edge=False)
    table.title = "Gbit/s from each worker to each other"
    table.title_justify = "left"
    for one in ranks:
        cells = [f"{ways[one, two]:.3g}" if (one, two) in ways else "-" for two in ranks]
        table.add_row(called[one], *cells)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _collectives(measured: Measured) -> Table:
    table = Table("", *COLUMNS, box=box.SIMPLE, pad_edge=False)
    table.title = f"{len(measured['hosts'])} workers, {measured['backend']}"
    table.title_justify = "left"
    for one in measured["collectives"]:
        table.add_row(
            one["name"],
            str(one["bytes"]),
            str(one["count"]),
            one["type"],
            one["redop"],
            f"{one['time_us']:.1f}",
            f"{one['algbw_gb_s']:.3f}",
            f"{one['busbw_gb_s']:.3f}",
            str(one["wrong"]),
        )
    for column in (*table.columns[1:3], *table.columns[5:]):
        column.justify = "right"
    return table
