"""The workers' measurements as tables, and a sentence on the slowest connections."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from muster.printable import printable

Measured = Mapping[str, Any]
Direction = tuple[int, int]  # from one rank to another
# A pair is named if it carries less than this part of the upper quartile: smaller differences are
# noise of busy machines. The median would not do, since one slow node of three makes two of three
# pairs slow.
SLOW = 0.5
SHOWN = 4  # pairs in a sentence
# The columns of nccl-tests, in their order and format.
COLUMNS = {
    "": "{name}",
    "size(B)": "{bytes}",
    "count": "{count}",
    "type": "{type}",
    "redop": "{redop}",
    "time(us)": "{time_us:.1f}",
    "algbw(GB/s)": "{algbw_gb_s:.3f}",
    "busbw(GB/s)": "{busbw_gb_s:.3f}",
    "#wrong": "{wrong}",
}


def names(measured: Measured, nodes: Mapping[int, str]) -> list[str]:
    """A name for each rank: its node, with the rank if a node has several."""
    of_rank = [printable(nodes.get(rank, host)) for rank, host in enumerate(measured["hosts"])]
    if len(set(of_rank)) == len(of_rank):
        return of_rank
    return [f"{name}.{rank}" for rank, name in enumerate(of_rank)]


def tables(measured: Measured, called: Sequence[str]) -> Iterator[tuple[str, Table]]:
    """Tables of the pairs, if there are several nodes, and of the collectives, with titles."""
    if measured["pairs"]:
        yield "Gbit/s from each worker (left) to each other", _matrix(measured, called)
    workers = len(measured["hosts"])
    yield f"{workers} workers, {measured['backend']}, in nccl-tests' terms", _collectives(measured)


def verdict(measured: Measured, called: Sequence[str]) -> tuple[str, list[str]]:
    """A sentence on the slowest pairs, and a line for every wrong result."""
    problems = [
        f"{one['name']} of {one['bytes']} bytes: {one['wrong']} values are wrong; something "
        "between the nodes changes data: check memory, cables and drivers"
        for one in measured["collectives"]
        if one["wrong"]
    ]
    directions = best(measured)
    if not directions:
        return "one node: no network to measure", problems
    return _sentence(directions, called), problems


def best(measured: Measured) -> dict[Direction, float]:
    """Gbit/s from each rank to each other, at the fastest message size."""
    found: dict[Direction, float] = {}
    for one in measured["pairs"]:
        pair = (one["from"], one["to"])
        found[pair] = max(found.get(pair, 0.0), one["gbit_s"])
    return found


def _sentence(directions: Mapping[Direction, float], called: Sequence[str]) -> str:
    """The sentence; each pair counts by its slower direction."""
    pairs: dict[Direction, float] = {}
    for (one, other), speed in directions.items():
        pair = min(one, other), max(one, other)
        pairs[pair] = min(pairs.get(pair, speed), speed)
    usual = sorted(pairs.values())[math.ceil(0.75 * (len(pairs) - 1))]
    ordered = sorted(pairs, key=lambda pair: pairs[pair])
    slow = [pair for pair in ordered if pairs[pair] < SLOW * usual]
    if not slow:
        speeds = _span(directions.values())
        return f"all pairs carry {speeds} Gbit/s; slowest: {_name(ordered[0], called)}"
    lines = [f"{_name(pair, called)} {rate(pairs[pair])}" for pair in slow[:SHOWN]]
    more = f" and {len(slow) - SHOWN} more" if len(slow) > SHOWN else ""
    others = _span([pairs[pair] for pair in ordered if pair not in slow])
    words = f"slow: {', '.join(lines)}{more} Gbit/s; others carry {others}"
    shared = set.intersection(*map(set, slow))
    if len(slow) > 1 and len(shared) == 1:
        words += f"; all slow pairs are with {called[shared.pop()]}: look at its link"
    return words


def _name(pair: Direction, called: Sequence[str]) -> str:
    return "-".join(called[rank] for rank in pair)


def rate(gbit_s: float) -> str:
    """With three significant digits: 0.940, 9.40, 94.0."""
    return f"{gbit_s:#.3g}".rstrip(".")


def _span(speeds: Iterable[float]) -> str:
    ordered = sorted(speeds)
    low, high = rate(ordered[0]), rate(ordered[-1])
    return low if low == high else f"{low} to {high}"


def _matrix(measured: Measured, called: Sequence[str]) -> Table:
    directions = best(measured)
    ranks = sorted({rank for pair in directions for rank in pair})
    table = Table("", box=box.SIMPLE, pad_edge=False)
    for one in ranks:
        table.add_column(called[one], justify="right")
    for one in ranks:
        cells = [rate(directions[one, two]) if (one, two) in directions else "-" for two in ranks]
        table.add_row(called[one], *cells)
    return table


def _collectives(measured: Measured) -> Table:
    table = Table(*COLUMNS, box=box.SIMPLE, pad_edge=False)
    for one in measured["collectives"]:
        table.add_row(*(printable(text.format_map(one)) for text in COLUMNS.values()))
    for column in (*table.columns[1:3], *table.columns[5:]):
        column.justify = "right"
    return table
