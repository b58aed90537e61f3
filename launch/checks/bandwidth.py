"""Make tables of the workers' measurements, and a sentence on the slowest connections."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from muster.printable import printable

Measurements = Mapping[str, Any]
Direction = tuple[int, int]  # from one rank to another
# A pair counts as slow below this fraction of the upper quartile, since smaller differences are
# noise on busy machines. The median would be too low: if one node of three is slow, two of the
# three pairs are slow.
SLOW = 0.5
LISTED = 4  # at most this many slow pairs are named
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


def names(measured: Measurements, nodes: Mapping[int, str]) -> list[str]:
    """A name for each rank: its node's name, followed by the rank if any node has several ranks."""
    of_rank = [printable(nodes.get(rank, host)) for rank, host in enumerate(measured["hosts"])]
    if len(set(of_rank)) == len(of_rank):
        return of_rank
    return [f"{name}.{rank}" for rank, name in enumerate(of_rank)]


def tables(measured: Measurements, names_of_ranks: Sequence[str]) -> Iterator[tuple[str, Table]]:
    """A table of the pairs, if any were measured, and a table of the collectives, with titles."""
    if measured["pairs"]:
        yield (
            "Gbit/s from each worker (rows) to each other worker (columns)",
            _matrix(measured, names_of_ranks),
        )
    workers = len(measured["hosts"])
    yield f"{workers} workers, {measured['backend']}, in nccl-tests' terms", _collectives(measured)


def verdict(measured: Measurements, names_of_ranks: Sequence[str]) -> tuple[str, list[str]]:
    """A sentence about the slowest pairs, and a line for every wrong result."""
    problems = [
        f"{row['name']} of {row['bytes']} bytes: {row['wrong']} values are wrong; something "
        "between the nodes corrupts data: check memory, cables and drivers"
        for row in measured["collectives"]
        if row["wrong"]
    ]
    directions = best(measured)
    if not directions:
        return "one node: no network to measure", problems
    return _sentence(directions, names_of_ranks), problems


def best(measured: Measurements) -> dict[Direction, float]:
    """The speed in Gbit/s from each rank to each other rank, at the fastest message size."""
    speeds: dict[Direction, float] = {}
    for row in measured["pairs"]:
        direction = (row["from"], row["to"])
        speeds[direction] = max(speeds.get(direction, 0.0), row["gbit_s"])
    return speeds


def _sentence(directions: Mapping[Direction, float], names_of_ranks: Sequence[str]) -> str:
    """The sentence about the slowest pairs; of each pair, the slower direction counts."""
    pairs: dict[Direction, float] = {}
    for (sender, receiver), speed in directions.items():
        pair = min(sender, receiver), max(sender, receiver)
        pairs[pair] = min(pairs.get(pair, speed), speed)
    usual = sorted(pairs.values())[math.ceil(0.75 * (len(pairs) - 1))]
    ordered = sorted(pairs, key=lambda pair: pairs[pair])
    slow = [pair for pair in ordered if pairs[pair] < SLOW * usual]
    if not slow:
        speeds = _span(directions.values())
        return f"all pairs reach {speeds} Gbit/s; slowest: {_name(ordered[0], names_of_ranks)}"
    lines = [f"{_name(pair, names_of_ranks)} {speed_text(pairs[pair])}" for pair in slow[:LISTED]]
    more = f" and {len(slow) - LISTED} more" if len(slow) > LISTED else ""
    others = _span([pairs[pair] for pair in ordered if pair not in slow])
    words = f"slow: {', '.join(lines)}{more} Gbit/s; others reach {others}"
    shared = set.intersection(*map(set, slow))
    if len(slow) > 1 and len(shared) == 1:
        words += f"; all slow pairs include {names_of_ranks[shared.pop()]}: check its link"
    return words


def _name(pair: Direction, names_of_ranks: Sequence[str]) -> str:
    return "-".join(names_of_ranks[rank] for rank in pair)


def speed_text(gbit_s: float) -> str:
    """A speed with three significant digits: 0.940, 9.40, 94.0."""
    return f"{gbit_s:#.3g}".rstrip(".")


def _span(speeds: Iterable[float]) -> str:
    ordered = sorted(speeds)
    low = speed_text(ordered[0])
    high = speed_text(ordered[-1])
    return low if low == high else f"{low} to {high}"


def _matrix(measured: Measurements, names_of_ranks: Sequence[str]) -> Table:
    directions = best(measured)
    ranks = sorted({rank for pair in directions for rank in pair})
    table = Table("", box=box.SIMPLE, pad_edge=False)
    for rank in ranks:
        table.add_column(names_of_ranks[rank], justify="right")
    for rank in ranks:
        row = [(rank, other) for other in ranks]
        cells = [speed_text(directions[pair]) if pair in directions else "-" for pair in row]
        table.add_row(names_of_ranks[rank], *cells)
    return table


def _collectives(measured: Measurements) -> Table:
    table = Table(*COLUMNS, box=box.SIMPLE, pad_edge=False)
    for row in measured["collectives"]:
        table.add_row(*(printable(text.format_map(row)) for text in COLUMNS.values()))
    for column in (*table.columns[1:3], *table.columns[5:]):
        column.justify = "right"
    return table
