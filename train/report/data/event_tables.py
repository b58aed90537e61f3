"""Tables of what is recorded beside steps: traffic, plans, checkpoints, ends and predictions."""

from collections.abc import Iterable, Iterator
from typing import Any

from train.report.data.reader import Row, Run
from train.report.data.statistics import mean, numbers
from train.report.data.subject import Entry, Subject
from train.report.data.tables import Table, all_steps, mean_of, timed

# Observed bytes over those that the algorithm moves; headers add 4 to 5 %.
BAND = (1.00, 1.08)
BAND_FROM_BYTES = 30_000_000  # beside smaller gradients, other traffic weighs too much
FAR = 0.15  # with a larger error on what was measured, no other prediction is shown
RATIO_FROM_BYTES = 1_000_000  # with less expected, acknowledgements alone make any ratio


def traffic(subject: Subject) -> Table:
    """Bytes of each host and epoch; epoch 0 is what made the replicas equal."""
    table = Table("traffic", "Traffic of each host: expected and measured")
    for entry in subject.entries:
        large = _gradient_bytes(entry.run) >= BAND_FROM_BYTES
        for row in entry.run.rows("traffic"):
            for way in ("sent", "received"):
                payload, control = row[f"payload_{way}_bytes"], row[f"control_{way}_bytes"]
                expected = add_up([payload, control])
                observed, wire = row[f"observed_{way}_bytes"], row[f"wire_bytes_{way}"]
                ratio = _byte_ratio(observed, expected)
                table.add(
                    run=entry.name,
                    **{key: row[key] for key in "host rank interface epoch steps".split()},
                    direction=way,
                    payload_bytes=payload,
                    control_bytes=control,
                    expected_bytes=expected,
                    wire_bytes=wire,
                    observed_bytes=observed,
                    ratio=ratio,
                    ratio_wire=_byte_ratio(observed, wire),
                    packet_bytes=row["packet_bytes"],
                    band=_band(ratio, row["epoch"], large),
                    note=row["note"] or None,
                )
    return table


def _band(ratio: float | None, epoch: Any, large: bool) -> str | None:
    if ratio is None or not epoch:
        return None
    if not large:
        return "small"
    return "inside" if BAND[0] <= ratio <= BAND[1] else "outside"


def _gradient_bytes(run: Run) -> int:
    known = numbers(row["payload_bytes"] for row in run.rows("step"))
    return int(max(known, default=0))


def collectives(subject: Subject) -> Table:
    table = Table("collectives", "Gradient collectives of a step")
    for entry in subject.entries:
        for row in entry.run.rows("collectives"):
            for number, one in enumerate(row["collectives"] or []):
                if isinstance(one, list | tuple) and len(one) == 4:
                    operation, shape, dtype, size = one
                    table.add(
                        run=entry.name,
                        rank=row["rank"],
                        from_step=row["step"],
                        number=number + 1,
                        operation=operation,
                        shape="x".join(map(str, shape)) if isinstance(shape, list) else shape,
                        dtype=dtype,
                        bytes=size,
                    )
    return table


def balance(subject: Subject) -> Table:
    """Each plan of --split auto, and what came of it: steps of its own against those before."""
    table = Table("balance", "How the batch was dealt")
    for entry in subject.entries:
        plans, steps = entry.run.first_rank("split"), timed(entry.run)
        ends = [plan["step"] for plan in plans[1:]] + [float("inf")]
        for plan, until in zip(plans, ends, strict=False):
            before = mean(row["step_s"] for row in steps if row["step"] <= plan["step"])
            during = mean(row["step_s"] for row in steps if plan["step"] < row["step"] <= until)
            table.add(
                run=entry.name,
                step=plan["step"],
                parts=" + ".join(map(str, plan["parts"] or [])),
                predicted_gain=plan["predicted_gain"],
                measured_gain=before / during if before and during else None,
            )
    return table


def checkpoints(subject: Subject) -> Table:
    table = Table("checkpoints", "What checkpoints cost")
    for entry in subject.entries:
        for rank, kinds in sorted(entry.run.ranks.items()):
            if rows := kinds["checkpoint"]:
                table.add(
                    run=entry.name,
                    rank=rank,
                    checkpoints=len(rows),
                    failed=sum(bool(row["error"]) for row in rows),
                    payload_bytes=rows[-1]["payload_bytes"],
                    stall_s=mean_of(rows, "stall_s"),
                    largest_stall_s=max(numbers(row["stall_s"] for row in rows), default=None),
                    write_s=mean_of(rows, "write_s"),
                )
    return table


def failures(subject: Subject) -> Table:
    """Attempts, ranks and cells that did not end well, each with its own message."""
    table = Table("failures", "Failures and restarts", "run attempt who host cause message".split())
    for entry in subject.entries:
        for number, part in enumerate([*entry.run.attempts, entry.run]):
            for one in _bad_ends(part):
                table.add(run=entry.name, attempt=number + 1, **one)
    for cell in subject.cells:
        if cell.get("state") == "failed":
            message = short(cell.get("message"))
            table.add(run=str(cell.get("id")), who="cell", cause="failed", message=message)
    return table


def _bad_ends(part: Run) -> Iterator[Row]:
    """Own causes first: a lost peer follows from another rank's end. The run's end comes last."""
    bad = [one for one in [*part.exits, *part.agents] if one.get("cause") not in ("done", None)]
    for one in sorted(bad, key=lambda one: one["cause"] in ("lost_peer", "peer", "command")):
        yield {
            "who": f"rank {one['rank']}" if "rank" in one else str(one.get("node", "?")),
            "host": one.get("host"),
            "cause": one["cause"],
            "message": short(one.get("message")),
        }
    if part.end.get("code"):
        cause, message = f"exit code {part.end['code']}", short(part.end.get("message"))
        yield {"who": "run", "cause": cause, "message": message}


def short(text: Any, longest: int = 300) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= longest else words[: longest - 3] + "..."


def prediction(subject: Subject) -> Table:
    """What the model of cost says of each mode; of what was not measured only where it is good."""
    table = Table("prediction", "Seconds per iteration: predicted and measured")
    modes = subject.prediction.get("seconds_per_iteration")
    for mode, by_workers in modes.items() if isinstance(modes, dict) else ():
        for workers, one in by_workers.items() if isinstance(by_workers, dict) else ():
            if isinstance(one, dict) and str(workers).isdigit():
                predicted, measured = one.get("predicted_s"), one.get("measured_s")
                ratio = _ratio(predicted, measured)
                table.add(
                    mode=mode,
                    workers=int(workers),
                    predicted_s=predicted,
                    measured_s=measured,
                    error=None if ratio is None else ratio - 1,
                )
    if is_far_off(table):
        table.rows = [row for row in table.rows if row["error"] is not None]
    return table


def is_far_off(table: Table) -> bool:
    """Whether the model misses anything that was measured by more than `FAR`."""
    return any(abs(error) > FAR for error in numbers(table.column("error")))


def overview(subject: Subject) -> Table:
    columns = "run folder state task sync workers nodes batch_size precision seed steps".split()
    columns += [key for key in subject.varying if key not in columns]
    table = Table("runs", "What was run", [*columns, "final_loss"])
    for entry in subject.entries:
        steps = all_steps(entry.run)
        row: dict[str, Any] = {key: entry.settings.get(key) for key in columns}
        row |= {
            "run": entry.name,
            "folder": entry.run.name,
            "state": state(entry),
            "steps": len(steps) or None,
            "final_loss": steps[-1]["loss"] if steps else None,
        }
        table.add(**row)
    return table


def state(entry: Entry) -> str:
    run = entry.run
    if run.end:
        code = run.end.get("code")
        return "done" if code == 0 else "stopped" if code == 75 else f"failed ({code})"
    if run.summary:
        return "done"
    bad = [one for one in run.exits if one.get("cause") not in ("done", "stopped")]
    return "failed" if bad else "no end on record"


def add_up(values: Iterable[Any]) -> float | None:
    """The sum; None where one of `values` is no number."""
    every = list(values)
    return sum(every) if len(numbers(every)) == len(every) else None


def _ratio(value: Any, base: Any) -> float | None:
    both = numbers([value, base])
    return both[0] / both[1] if len(both) == 2 and both[1] else None


def _byte_ratio(observed: Any, expected: Any) -> float | None:
    known = numbers([expected])
    return _ratio(observed, expected) if known and known[0] >= RATIO_FROM_BYTES else None
