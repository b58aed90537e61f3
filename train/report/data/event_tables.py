"""Tables of records beside steps: traffic, splits, checkpoints and ends."""

from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from muster.orderly_stop import without_advice
from train.report.data.reader import Row, Run, mean, numbers
from train.report.data.subject import Subject
from train.report.data.tables import add_up, as_table, mean_of, timed

# Observed bytes over those of the algorithm; headers add 4 to 5 %.
BAND = (1.00, 1.08)
BAND_FROM_BYTES = 30_000_000  # with fewer bytes of gradients, other traffic is too large a part
RATIO_FROM_BYTES = 1_000_000  # with fewer expected bytes, acknowledgements decide the ratio


@as_table
def traffic(subject: Subject) -> Iterator[Row]:
    """Bytes of each host and epoch; epoch 0 is the broadcast that made the replicas equal."""
    for entry in subject.entries:
        sizes = numbers(row["payload_bytes"] for row in entry.run.rows("step"))
        is_large = max(sizes, default=0) >= BAND_FROM_BYTES
        for row in entry.run.rows("traffic"):
            for way in ("sent", "received"):
                payload, control = row[f"payload_{way}_bytes"], row[f"control_{way}_bytes"]
                expected = add_up([payload, control])
                observed, wire = row[f"observed_{way}_bytes"], row[f"wire_bytes_{way}"]
                ratio = _byte_ratio(observed, expected)
                one: Row = {"run": entry.name, "host": row["host"], "rank": row["rank"]}
                one |= {key: row[key] for key in ("interface", "epoch", "steps")}
                one |= {"direction": way, "payload_bytes": payload, "control_bytes": control}
                one |= {"expected_bytes": expected, "wire_bytes": wire, "observed_bytes": observed}
                one |= {"ratio": ratio, "ratio_wire": _byte_ratio(observed, wire)}
                one |= {"packet_bytes": row["packet_bytes"], "note": row["note"] or None}
                yield one | {"band": _band(ratio, row["epoch"], is_large)}


def traffic_totals(table: pd.DataFrame) -> pd.DataFrame:
    """Sums over the epochs of training; if a part is unknown, so is its total."""
    of_training = table[table["epoch"].astype(bool)]
    of_each = of_training.groupby(["run", "host", "direction"], sort=False)
    made = of_each[["expected_bytes", "observed_bytes"]].agg(add_up)
    return made.reset_index().astype(object)


def sent(totals: pd.DataFrame) -> pd.DataFrame:
    """The expected and the counted MB that all hosts of each run sent."""
    of_runs = totals[totals["direction"] == "sent"].groupby("run", sort=False)
    table = of_runs[["expected_bytes", "observed_bytes"]].agg(add_up).astype(float) / 1e6
    return table.set_axis(["MB_expected", "MB_counted"], axis=1)


def _band(ratio: float | None, epoch: Any, is_large: bool) -> str | None:
    if ratio is None or not epoch:
        return None
    if not is_large:
        return "small"
    return "inside" if BAND[0] <= ratio <= BAND[1] else "outside"


@as_table
def collectives(subject: Subject) -> Iterator[Row]:
    """The gradient collectives of a step, one per row, as recorded by the lowest rank."""
    for entry in subject.entries:
        for row in entry.run.first_rank("collectives"):  # all ranks take part in the same ones
            for number, one in enumerate(row["collectives"] or [], start=1):
                if isinstance(one, list | tuple) and len(one) in (4, 5):
                    operation, shape, dtype, size, *name = one  # older records have no names
                    shape = "x".join(map(str, shape)) if isinstance(shape, list) else shape
                    at = {"run": entry.name, "rank": row["rank"], "from_step": row["step"]}
                    at |= {"number": number, "operation": operation, "shape": shape}
                    at |= {"dtype": dtype, "bytes": size}
                    yield at | {"parameter": (name[0] if name else None) or None}


@as_table
def balance(subject: Subject) -> Iterator[Row]:
    """Each division of --split auto, and its effect: the steps after it against those before."""
    for entry in subject.entries:
        plans, steps = entry.run.first_rank("split"), timed(entry.run)
        ends = [plan["step"] for plan in plans[1:]] + [float("inf")]
        for plan, until in zip(plans, ends, strict=False):
            before = mean(row["step_s"] for row in steps if row["step"] <= plan["step"])
            during = mean(row["step_s"] for row in steps if plan["step"] < row["step"] <= until)
            one = {"run": entry.name, "step": plan["step"]}
            one["parts"] = " + ".join(map(str, plan["parts"] or []))
            one["predicted_gain"] = plan["predicted_gain"]
            yield one | {"measured_gain": before / during if before and during else None}


@as_table
def drift(subject: Subject) -> Iterator[Row]:
    """How much ranks' parameters differed when they were made equal."""
    for entry in subject.entries:
        if rows := entry.run.first_rank("drift"):
            most = max(rows, key=lambda row: row["drift"] or 0.0)
            one = {"run": entry.name, "measured": len(rows), "largest_drift": most["drift"]}
            yield one | {"at_step": most["step"], "last_drift": rows[-1]["drift"]}


@as_table
def checkpoints(subject: Subject) -> Iterator[Row]:
    """The cost of checkpoints on each rank that wrote some."""
    for entry in subject.entries:
        for rank, kinds in entry.run.ranks.items():
            if rows := kinds["checkpoint"]:
                one = {"run": entry.name, "rank": rank, "checkpoints": len(rows)}
                one["failed"] = sum(bool(row["error"]) for row in rows)
                one["payload_bytes"] = rows[-1]["payload_bytes"]
                one["stall_s"] = mean_of(rows, "stall_s")
                one["largest_stall_s"] = max(numbers(r["stall_s"] for r in rows), default=None)
                yield one | {"write_s": mean_of(rows, "write_s")}


@as_table
def failures(subject: Subject) -> Iterator[Row]:
    """Attempts, ranks and cells that did not end well; those with one message are one row."""
    for entry in subject.entries:
        for number, part in enumerate([*entry.run.attempts, entry.run], start=1):
            alike: dict[str, list[Row]] = {}
            for who, of_end in _bad_ends(part):
                message = without_advice(short(of_end.get("message")))
                one = {"who": who, "host": of_end.get("host"), "cause": of_end["cause"]}
                alike.setdefault(message or who, []).append(one | {"message": message})
            for rows in alike.values():
                at = {"run": entry.name, "attempt": number}
                at |= {name: _each_once(row[name] for row in rows) for name in rows[0]}
                yield at
    for cell in subject.cells:
        if cell.get("state") == "failed":
            at = {"run": str(cell.get("id")), "attempt": None, "who": "cell", "host": None}
            yield at | {"cause": "failed", "message": short(cell.get("message"))}


def _each_once(values: Iterable[Any], most: int = 4) -> str:
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _bad_ends(part: Run) -> Iterator[tuple[str, Row]]:
    """Causes first, then lost peers, which follow from another rank's end; the run's end last."""
    bad = [one for one in [*part.exits, *part.agents] if one.get("cause") not in ("done", None)]
    for one in sorted(bad, key=lambda one: one["cause"] in ("lost_peer", "peer", "command")):
        yield f"rank {one['rank']}" if "rank" in one else str(one.get("node", "?")), one
    if part.end.get("code"):
        message = part.end.get("message")
        yield "run", {"cause": f"exit code {part.end['code']}", "message": message}


def short(text: Any, longest: int = 300) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= longest else words[: longest - 3] + "..."


def _byte_ratio(observed: Any, expected: Any) -> float | None:
    known = numbers([observed, expected])
    return observed / expected if len(known) == 2 and expected >= RATIO_FROM_BYTES else None
