"""What bounds a run and what to change first; each sentence names the number it rests on."""

import re
from collections.abc import Iterator

from train.cost.algorithms import payload_share, ring_all_reduce
from train.cost.comparison import Cell, Outcome
from train.cost.measured_runs import Run
from train.report.data.event_tables import FAR

SMALL = 0.05  # smaller parts of a step are not mentioned
# What one may change to by a flag alone, with the same losses.
INSTEAD = ("gather_scatter", "all_reduce", "ddp")


def sentences(outcome: Outcome) -> list[str]:
    """One for what bounds each mode that was run on most workers, then what comes beyond."""
    most = max((cell.predicted.workers for cell in outcome.measured), default=0)
    lines: list[str] = []
    for cell in outcome.measured:
        if cell.predicted.workers == most and most > 1:
            lines += _doubt(cell) if cell.is_far_off else [_bound(outcome, cell)]
            lines += _first(outcome, cell)
    lines += _imbalance(outcome)
    lines += _links(outcome)
    lines += _beyond(outcome, most)
    return lines


def _bound(outcome: Outcome, cell: Cell) -> str:
    made = cell.predicted
    named = {
        "computing": made.compute_s,
        "bandwidth": made.bandwidth_s,
        "latency": made.latency_s,
    }
    what = max(named, key=lambda name: named[name])
    share = named[what] / made.step_s
    where = f"{made.mode} on {made.workers} workers is bound by {what}: "
    parts = f"{_s(named[what])} of the predicted {_s(made.step_s)} a step ({share:.0%})"
    if what == "computing":
        return f"{where}{parts} are {made.samples:.4g} samples per worker"
    if what == "bandwidth":
        link = outcome.bench.of("gather" if made.mode == "gather_scatter" else "all_reduce").link
        return (
            f"{where}{parts} are bytes of {outcome.gradient_bytes / 1e6:.1f} MB of gradients on "
            f"the busiest link, {_fitted(outcome)} {link.bytes_per_s / 1e6:.0f} MB/s"
        )
    return f"{where}{parts} are messages, in {outcome.buckets} collectives of gradients"


def _first(outcome: Outcome, cell: Cell) -> Iterator[str]:
    """What to change first, where something promises more than a small part of a step."""
    made = cell.predicted
    if outcome.furthest_off is not None:
        yield from _measured_first(outcome, cell)
        return
    if made.sync_s < SMALL * made.step_s:
        yield (
            f"{made.mode}: only {made.sync_s / made.step_s:.1%} of the predicted step is sync; "
            "faster processors help, another network does not"
        )
        return
    others = [outcome.cell(mode, made.workers) for mode in INSTEAD]
    found = [one for one in others if one is not None]
    if cell.measured and all(one.measured for one in found):
        advice = list(_measured_first(outcome, cell))
    else:
        best = min(found, key=lambda one: one.predicted.step_s)
        comparison = (made.step_s, best.predicted.step_s, "predicted")
        advice = list(_change(cell, best, *comparison, margin=max(SMALL, outcome.largest_error)))
    if advice:
        yield from advice
    elif made.bandwidth_s > max(made.latency_s, SMALL * made.step_s):
        half = outcome.cell("ddp_fp16", made.workers)
        left_s = half.predicted.step_s if half else made.step_s - made.bandwidth_s / 2
        yield (
            f"{made.mode}: no other mode here is clearly faster; ddp with gradients of 16 bits is "
            f"predicted {_s(left_s)} a step, and a --batch-size twice as large pays the "
            f"{_s(made.sync_s)} of sync half as often"
        )
    elif outcome.buckets > 1:
        yield (
            f"{made.mode}: {outcome.buckets} collectives cost {_s(made.latency_s)} of latency a "
            "step; a larger --bucket-mb makes fewer"
        )
    else:
        yield (
            f"{made.mode}: {_s(made.latency_s)} of latency a step with one collective; fewer "
            "steps (a larger --batch-size) pay it less often"
        )


def _measured_first(outcome: Outcome, cell: Cell) -> Iterator[str]:
    """The fastest mode that was measured, unless the confidence intervals leave that to chance."""
    others = [outcome.cell(mode, cell.predicted.workers) for mode in INSTEAD]
    known = [one for one in others if one is not None and one.measured]
    best = min(known, key=lambda one: one.measured_s or 0.0, default=None)
    if best is None or best.measured is None or cell.measured is None:
        return
    ends = best.measured.high, cell.measured.low
    if ends[0] is not None and ends[1] is not None and ends[0] < ends[1]:
        yield from _change(cell, best, cell.measured.mean, best.measured.mean, "measured")


def _change(
    cell: Cell, best: Cell, own_s: float, best_s: float, how: str, margin: float = SMALL
) -> Iterator[str]:
    if best_s < (1 - margin) * own_s:
        yield (
            f"{cell.predicted.mode}: change first to --sync {best.predicted.mode}, {how} "
            f"{_s(best_s)} a step, {own_s / best_s:.2f} times as fast"
        )


def _doubt(cell: Cell) -> Iterator[str]:
    """Where the model does not explain what was measured, nothing should be built on it."""
    if cell.measured_s is not None:
        yield (
            f"{cell.predicted.mode} took {_s(cell.measured_s)} a step on {cell.predicted.workers} "
            f"workers, the model says {_s(cell.predicted.step_s)} ({cell.error:+.0%}): something "
            "that it does not know is at work, such as other load, or cores that compute and "
            "communicate at once; what bounds the step is not known"
        )


def _imbalance(outcome: Outcome) -> Iterator[str]:
    """Of all runs on several workers, those of other settings included."""
    runs = [run for run in (*outcome.runs, *outcome.left_out) if run.workers > 1]
    if not runs:
        return
    run = max(runs, key=lambda one: one.imbalance_s / one.step_s)
    share = run.imbalance_s / run.step_s
    if share < SMALL:
        yield (
            f"imbalance does not bound any of the {len(runs)} runs on several workers: the slowest "
            f"rank computes at most {_s(run.imbalance_s)} ({share:.1%} of a step) longer than the "
            "mean"
        )
        return
    where = run.mode if run in outcome.runs else f"{run.mode} ({run.name})"
    advice = "; try --split auto if it is always the same rank" if _is_even(run) else ""
    yield (
        f"imbalance: in {where} the slowest rank computes {_s(run.imbalance_s)} "
        f"({share:.0%} of a step) longer than the mean of {run.workers}{advice}"
    )


def _is_even(run: Run) -> bool:
    return run.settings.get("split") in (None, "even")


def _fitted(outcome: Outcome) -> str:
    return "taken to carry" if outcome.bench.note else "which the bench measured at"


def _links(outcome: Outcome) -> Iterator[str]:
    """What the link carries, in payload alone: how a limited link counts headers is unknown."""
    bench = outcome.bench
    link = bench.of("all_reduce").link
    payload_mbit, message = link.bytes_per_s * 8e-6, f"a message takes {link.alpha_s * 1e6:.0f} us"
    if bench.note:
        yield (
            f"the ring's link is taken to carry {payload_mbit:.0f} Mbit/s of payload, with the "
            f"headers of MTU {bench.mtu_bytes} {bench.wire_mbit_s('all_reduce'):.0f} Mbit/s; "
            f"{message}"
        )
        return
    rate = _rate_mbit(outcome)
    room_mbit = rate * payload_share(bench.mtu_bytes) if rate else None
    more = (
        f", more than the {room_mbit:.0f} Mbit/s that {rate:g} Mbit/s leave beside the headers of "
        f"MTU {bench.mtu_bytes}: this limit lets more through than a wire"
        if room_mbit and payload_mbit > room_mbit
        else ""
    )
    yield (
        f"the bench moved {payload_mbit:.0f} Mbit/s of payload over the ring's link{more}; "
        f"{message}"
    )


def _rate_mbit(outcome: Outcome) -> float | None:
    """Of the testbed's links, where a study set it."""
    for run in outcome.runs:
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg])bit", str(run.cell.get("rate")).lower())
        if found:
            return float(found[1]) * {"k": 1e-3, "m": 1.0, "g": 1e3}[found[2]]
    return None


def _beyond(outcome: Outcome, most: int) -> Iterator[str]:
    """Where more workers lead, and from where on latency is what counts."""
    off = outcome.furthest_off
    if off is not None:
        yield (
            f"nothing is predicted for what was not measured: {off.predicted.mode} on "
            f"{off.predicted.workers} workers is {off.error:+.0%} off, which is more than {FAR:.0%}"
        )
        return
    largest = max(cell.predicted.workers for cell in outcome.cells)
    far, near = outcome.cell("ddp", largest), outcome.cell("ddp", max(2, most))
    if largest > most and far is not None and near is not None:
        alone = far.predicted.compute_s
        yield (
            f"ddp on {largest} workers: predicted {_s(far.predicted.step_s)} a step, of which "
            f"{_s(alone)} is computing: an efficiency of {alone / far.predicted.step_s:.0%}, after "
            f"{near.predicted.compute_s / near.predicted.step_s:.0%} on {near.predicted.workers}"
        )
    link = outcome.bench.of("all_reduce").link
    each = outcome.gradient_bytes / outcome.buckets
    for workers in (2**power for power in range(2, 21)):
        load = ring_all_reduce(each, workers)
        if link.alpha_s > 0 and load.latency_s(link) >= load.bandwidth_s(link):
            yield (
                f"the ring pays more for latency than for bytes from about {workers} workers on, "
                f"with {each / 1e6:.1f} MB a collective"
            )
            return


def _s(seconds: float) -> str:
    """Seconds with three digits that mean something."""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
