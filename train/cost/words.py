"""What bounds a run and what to change first; each sentence names the number it rests on."""

from collections.abc import Iterator

from train.cost.algorithms import Load, ring_all_reduce
from train.cost.study import Cell, Outcome

SMALL = 0.05  # a part of a step that is not worth a sentence
FAR = 0.15  # an error of a prediction that is
# What one may change to by a flag alone, with the same losses.
INSTEAD = ("gather_scatter", "all_reduce", "ddp")


def sentences(outcome: Outcome) -> list[str]:
    """One for what bounds each mode that was run on most workers, then what comes beyond."""
    most = max((cell.predicted.workers for cell in outcome.measured), default=0)
    said: list[str] = []
    for cell in outcome.measured:
        if cell.predicted.workers == most and most > 1:
            said += [*_doubt(cell), _bound(outcome, cell), *_first(outcome, cell)]
    said += _imbalance(outcome, most)
    said += _links(outcome)
    said += _beyond(outcome, most)
    return said


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
        return f"{where}{parts} are {made.samples} samples per worker"
    if what == "bandwidth":
        link = outcome.bench.of("gather" if made.mode == "gather_scatter" else "all_reduce").link
        return (
            f"{where}{parts} are bytes of {outcome.gradient_bytes / 1e6:.1f} MB of gradients on "
            f"the busiest link, which carries {link.bytes_per_s / 1e6:.0f} MB/s"
        )
    return f"{where}{parts} are messages, in {outcome.buckets} collectives of gradients"


def _first(outcome: Outcome, cell: Cell) -> Iterator[str]:
    """What to change first, where something promises more than a small part of a step."""
    made = cell.predicted
    if made.sync_s < SMALL * made.step_s:
        yield (
            f"{made.mode}: only {made.sync_s / made.step_s:.1%} of the predicted step is sync; "
            "faster processors help, another network does not"
        )
        return
    best, best_s, own_s, how = _best(outcome, cell)
    if best_s < (1 - SMALL) * own_s:
        yield (
            f"{made.mode}: change first to --sync {best}, {how} {_s(best_s)} a step, "
            f"{own_s / best_s:.2f} times as fast"
        )
    elif made.bandwidth_s > max(made.latency_s, SMALL * made.step_s):
        half = outcome.cell("ddp_fp16", made.workers)
        left_s = half.predicted.step_s if half else made.step_s - made.bandwidth_s / 2
        yield (
            f"{made.mode}: no other mode here is faster; ddp with gradients of 16 bits is "
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


def _best(outcome: Outcome, cell: Cell) -> tuple[str, float, float, str]:
    """The fastest mode, its seconds and this one's, measured if all modes were."""
    others = [outcome.cell(mode, cell.predicted.workers) for mode in INSTEAD]
    found = [one for one in others if one is not None]
    measured = {one.predicted.mode: one.measured_s for one in found if one.measured_s is not None}
    if len(measured) == len(found) and cell.measured_s is not None:
        best = min(measured, key=lambda mode: measured[mode])
        return best, measured[best], cell.measured_s, "measured"
    least = min((one.predicted for one in found), key=lambda one: one.step_s)
    return least.mode, least.step_s, cell.predicted.step_s, "predicted"


def _doubt(cell: Cell) -> Iterator[str]:
    """Where the model does not explain what was measured, nothing should be built on it."""
    if cell.error is not None and cell.measured_s is not None and abs(cell.error) > FAR:
        yield (
            f"{cell.predicted.mode} took {_s(cell.measured_s)} a step on {cell.predicted.workers} "
            f"workers, the model says {_s(cell.predicted.step_s)} ({cell.error:+.0%}): something "
            "that it does not know is at work, such as other load, or cores that compute and "
            "communicate at once; measure again before believing what it says of more workers"
        )


def _imbalance(outcome: Outcome, most: int) -> Iterator[str]:
    runs = [run for run in outcome.runs if run.workers == most > 1 and run.imbalance_s > 0]
    if not runs:
        return
    run = max(runs, key=lambda one: one.imbalance_s / one.step_s)
    share = run.imbalance_s / run.step_s
    if share < SMALL:
        yield (
            f"imbalance does not bound any run: the slowest rank computes at most "
            f"{_s(run.imbalance_s)} ({share:.1%} of a step) longer than the mean"
        )
        return
    yield (
        f"imbalance: in {run.mode} the slowest rank computes {_s(run.imbalance_s)} "
        f"({share:.0%} of a step) longer than the mean of {most}; try --split auto if it is "
        "always the same rank"
    )


def _links(outcome: Outcome) -> Iterator[str]:
    bench = outcome.bench
    link = bench.of("all_reduce").link
    does = "is taken to carry" if bench.note else "carries"
    yield (
        f"the ring's link {does} {link.bytes_per_s * 8e-6:.0f} Mbit/s of payload, with the "
        f"headers of MTU {bench.mtu_bytes} {bench.wire_mbit_s('all_reduce'):.0f} Mbit/s; a "
        f"message takes {link.alpha_s * 1e6:.0f} us"
    )


def _beyond(outcome: Outcome, most: int) -> Iterator[str]:
    """Where more workers lead, and from where on latency is what counts."""
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
    if link.alpha_s <= 0:
        return
    load = Load(1, 0)
    workers = 2
    while load.latency_s(link) < load.bandwidth_s(link) or workers == 2:
        workers *= 2
        each = outcome.gradient_bytes / outcome.buckets
        load = ring_all_reduce(each, workers)
        if workers > 2**20:
            return
    yield (
        f"the ring pays more for latency than for bytes from about {workers} workers on, with "
        f"{each / 1e6:.1f} MB a collective; a tree pays {link.alpha_s * 1e6:.0f} us for each of "
        "its levels only"
    )


def _s(seconds: float) -> str:
    """Seconds with three digits that mean something."""
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
