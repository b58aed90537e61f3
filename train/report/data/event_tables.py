"""Tables of records other than steps: traffic, splits, checkpoints and ends."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from muster.orderly_stop import without_advice
from train.report.data.frames import add_up, last_attempt_records, mean_of_all
from train.report.data.reader import Row, Run, mean
from train.report.data.subject import Subject

# Observed bytes divided by the bytes of the algorithm; headers add 4 to 5 %.
BAND = (1.00, 1.08)
BAND_FROM_BYTES = 30_000_000  # with fewer bytes of gradients, other traffic is too large a part
RATIO_FROM_BYTES = 1_000_000  # with fewer expected bytes, acknowledgements dominate the ratio
FAILURE_FIELDS = ["run", "attempt", "who", "host", "cause", "message"]
COLLECTIVE_FIELDS = ["operation", "shape", "dtype", "bytes", "parameter"]


def traffic(subject: Subject) -> pd.DataFrame:
    """Bytes of each host and epoch; epoch 0 is the broadcast that made the replicas equal."""
    table = last_attempt_records(subject.entries, "traffic")
    counts = [name for name in table if "_bytes" in name]
    table = table.astype(dict.fromkeys(counts, "Int64"))
    of_last = subject.steps[subject.steps["is_last"]].groupby("run")
    largest = table["run"].map(of_last["payload_bytes"].max())
    table["is_large"] = largest >= BAND_FROM_BYTES
    ways = pd.concat([_direction_rows(table, way) for way in ("sent", "received")])
    return ways.sort_index(kind="stable").reset_index(drop=True).astype(object)


def _direction_rows(table: pd.DataFrame, way: str) -> pd.DataFrame:
    """The rows for one direction: `way` is "sent" or "received"."""
    rows = table[["run", "host", "rank", "interface", "epoch", "steps"]].assign(direction=way)
    rows["payload_bytes"] = table[f"payload_{way}_bytes"]
    rows["control_bytes"] = table[f"control_{way}_bytes"]
    rows["expected_bytes"] = rows["payload_bytes"] + rows["control_bytes"]
    rows["wire_bytes"] = table[f"wire_bytes_{way}"]
    rows["observed_bytes"] = table[f"observed_{way}_bytes"]
    observed, expected, wire = (
        rows[f"{name}_bytes"].astype(float) for name in ("observed", "expected", "wire")
    )
    rows["ratio"] = observed / expected.where(expected >= RATIO_FROM_BYTES)
    rows["ratio_wire"] = observed / wire.where(wire >= RATIO_FROM_BYTES)
    rows["packet_bytes"], rows["note"] = table["packet_bytes"], table["note"].replace("", None)
    band = rows["ratio"].between(*BAND).map({True: "inside", False: "outside"})
    is_judged = rows["ratio"].notna() & rows["epoch"].astype(bool)
    return rows.assign(band=band.where(table["is_large"], "small").where(is_judged, None))


def traffic_totals(table: pd.DataFrame) -> pd.DataFrame:
    """Sums over the epochs of training; if a part is unknown, so is its total."""
    of_training = table[table["epoch"].astype(bool)]
    of_each = of_training.groupby(["run", "host", "direction"], sort=False)
    made = of_each[["expected_bytes", "observed_bytes"]].agg(add_up)
    return made.reset_index().astype(object)


def sent(totals: pd.DataFrame) -> pd.DataFrame:
    """The expected and the counted MB sent by all hosts of each run."""
    of_runs = totals[totals["direction"] == "sent"].groupby("run", sort=False)
    table = of_runs[["expected_bytes", "observed_bytes"]].agg(add_up).astype(float) / 1e6
    return table.set_axis(["MB_expected", "MB_counted"], axis=1)


def collectives(subject: Subject) -> pd.DataFrame:
    """The gradient collectives of a step, one per row, as recorded by the lowest rank."""
    # all ranks take part in the same collectives
    of_steps = last_attempt_records(subject.entries, "collectives", of_lead=True)
    table = of_steps.explode("collectives").dropna(subset="collectives")
    parts = pd.DataFrame(list(table["collectives"]), index=table.index, columns=COLLECTIVE_FIELDS)
    parts["shape"] = ["x".join(map(str, shape)) for shape in parts["shape"]]
    at = table[["run", "rank"]].assign(from_step=table["step"])
    at["number"] = table.groupby(level=0).cumcount() + 1
    return pd.concat([at, parts.replace({"parameter": {"": None}})], axis=1)


def balance(subject: Subject) -> pd.DataFrame:
    """Each split that --split auto chose, and its effect: step times before and after it."""
    plans = last_attempt_records(subject.entries, "split", of_lead=True)
    table = plans[["run", "step", "parts", "predicted_gain"]].reset_index(drop=True)
    until = table.groupby("run")["step"].shift(-1).fillna(math.inf)
    timed = subject.steps[subject.steps["is_timed"] & subject.steps["is_lead"]]
    plans = table[["run", "step"]].assign(until=until, plan=table.index)
    pairs = plans.merge(timed[["run", "step", "step_s"]], on="run", suffixes=("_of_plan", ""))
    is_after = pairs["step"] > pairs["step_of_plan"]
    is_during = is_after & (pairs["step"] <= pairs["until"])
    before, during = (
        pairs[rows].groupby("plan")["step_s"].agg(mean_of_all) for rows in (~is_after, is_during)
    )
    table["parts"] = [" + ".join(map(str, parts or [])) for parts in table["parts"]]
    return table.assign(measured_gain=before.where(before > 0) / during.where(during > 0))


def drift(subject: Subject) -> pd.DataFrame:
    """How much the parameters of the ranks differed when they were made equal."""
    rows = last_attempt_records(subject.entries, "drift", of_lead=True)
    by_size = rows.assign(size=rows["drift"].fillna(0)).sort_values(
        "size", ascending=False, kind="stable"
    )
    most = by_size.drop_duplicates("run").set_index("run")
    last = rows.drop_duplicates("run", keep="last").set_index("run")
    table = rows.groupby("run", sort=False).size().to_frame("measured")
    table["largest_drift"], table["at_step"] = most["drift"], most["step"]
    return table.assign(last_drift=last["drift"]).reset_index()


def checkpoints(subject: Subject) -> pd.DataFrame:
    """The cost of checkpoints on each rank that wrote any."""
    rows = last_attempt_records(subject.entries, "checkpoint")
    rows["has_failed"] = rows["error"].fillna("") != ""
    of_ranks = rows.groupby(["run", "rank"], sort=False)
    table = of_ranks.size().to_frame("checkpoints").assign(failed=of_ranks["has_failed"].sum())
    last = rows.drop_duplicates(["run", "rank"], keep="last").set_index(["run", "rank"])
    table["payload_bytes"] = last["payload_bytes"]
    table["stall_s"] = of_ranks["stall_s"].agg(mean)
    table["largest_stall_s"] = of_ranks["stall_s"].max()
    return table.assign(write_s=of_ranks["write_s"].agg(mean)).reset_index()


def failures(subject: Subject) -> pd.DataFrame:
    """Attempts, ranks and cells that did not end well; equal messages of an attempt share a row."""
    ends = pd.DataFrame(_failures(subject), columns=FAILURE_FIELDS, dtype=object)
    message = ends["message"].where(ends["message"] != "", ends["who"]).rename("shared")
    of_each = ends.groupby(["run", "attempt", message], sort=False)[FAILURE_FIELDS[2:]]
    table = of_each.agg(_each_once).reset_index().drop(columns="shared").astype(object)
    cells = [
        (str(cell.get("id")), None, "cell", None, "failed", short(cell.get("message")))
        for cell in subject.cells
        if cell.get("state") == "failed"
    ]
    of_cells = pd.DataFrame(cells, columns=FAILURE_FIELDS, dtype=object)
    return pd.concat([table, of_cells], ignore_index=True)


def _failures(subject: Subject) -> Iterator[Row]:
    """Yield the end of each rank, node and attempt that did not end well."""
    for entry in subject.entries:
        for number, part in enumerate([*entry.run.attempts, entry.run], start=1):
            for who, end in _bad_ends(part):
                message = without_advice(short(end.get("message")))
                at = {"run": entry.name, "attempt": number, "who": who, "host": end.get("host")}
                yield at | {"cause": end["cause"], "message": message}


def _each_once(values: Iterable[Any], most: int = 4) -> str:
    names = list(dict.fromkeys(str(value) for value in values if value is not None))
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _bad_ends(part: Run) -> Iterator[tuple[str, Row]]:
    """Yield causes first, then lost peers (a result of another rank's end), then the run's end."""
    bad = [end for end in [*part.exits, *part.agents] if end.get("cause") not in ("done", None)]
    for exit_record in sorted(
        bad, key=lambda end: end["cause"] in ("lost_peer", "peer", "command")
    ):
        yield (
            f"rank {exit_record['rank']}"
            if "rank" in exit_record
            else str(exit_record.get("node", "?")),
            exit_record,
        )
    if part.end.get("code"):
        message = part.end.get("message")
        yield "run", {"cause": f"exit code {part.end['code']}", "message": message}


def short(text: Any, longest: int = 300) -> str:
    words = " ".join(str(text or "").split())
    return words if len(words) <= longest else words[: longest - 3] + "..."
