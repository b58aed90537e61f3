"""Predicted beside measured: the runs of one experiment, and what more workers would do."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from muster.errors import UsageError
from train.cost.algorithms import payload_share
from train.cost.fit import Bench, ComputeFit, ComputePoint, fit_compute
from train.cost.measured_runs import OVERLAPPING, Run
from train.cost.predict import FURTHER, MODES, Prediction, predict
from train.report.data.event_tables import FAR
from train.report.data.statistics import Estimate, estimate

BACKWARD_OF_FORWARD = 2.0  # taken where every measured backward pass includes communication


@dataclass(frozen=True)
class Cell:
    """One mode on so many workers."""

    predicted: Prediction
    measured: Estimate | None  # seconds of a step, as a report has them
    measured_sync_s: float | None  # where the mode has a phase of its own for it

    @property
    def measured_s(self) -> float | None:
        return self.measured.mean if self.measured else None

    @property
    def is_far_off(self) -> bool:
        return self.error is not None and abs(self.error) > FAR

    @property
    def error(self) -> float | None:
        """Of the prediction, as a part of what was measured."""
        return self.predicted.step_s / self.measured_s - 1 if self.measured_s else None

    @property
    def sync_error(self) -> float | None:
        return self.predicted.sync_s / self.measured_sync_s - 1 if self.measured_sync_s else None


@dataclass(frozen=True)
class Outcome:
    """Everything that is reported: a cell for each mode and number of workers, and its grounds."""

    cells: tuple[Cell, ...]
    runs: tuple[Run, ...]
    compute: ComputeFit  # of all runs together
    bench: Bench
    gradient_bytes: int
    buckets: int
    assumptions: tuple[str, ...]
    left_out: tuple[Run, ...] = ()  # those of other settings

    @property
    def furthest_off(self) -> Cell | None:
        """The measured cell that the model misses by most, where that is too far to predict on."""
        far = [one for one in self.cells if one.is_far_off]
        return max(far, key=lambda one: abs(one.error or 0.0), default=None)

    @property
    def largest_error(self) -> float:
        """Of the model, on what was measured."""
        return max((abs(one.error or 0.0) for one in self.measured), default=0.0)

    def cell(self, mode: str, workers: int) -> Cell | None:
        for one in self.cells:
            if (one.predicted.mode, one.predicted.workers) == (mode, workers):
                return one
        return None

    @property
    def measured(self) -> list[Cell]:
        return [one for one in self.cells if one.measured]


def compare(runs: Sequence[Run], bench: Bench, more_workers: Sequence[int]) -> Outcome:
    """Predict every mode at every number of workers that was run, and at `more_workers`.

    Only what was measured is left where the model misses any of that by more than `FAR`.

    Raises:
        UsageError: no run of several workers tells how many bytes are synchronised.
    """
    chosen, lines = _one_experiment(runs)
    several = [run for run in chosen if run.workers > 1 and run.gradient_bytes]
    if not several:
        raise UsageError(
            "no run of two workers or more: nothing tells the gradients' bytes; give one"
        )
    # what is taken for modes that were not run: all of the gradients
    work = max(
        several,
        key=lambda run: (run.gradient_bytes, len(run.buckets_bytes), run.mode not in OVERLAPPING),
    )
    points, how = _points(chosen)
    by_workers = _by(points, lambda point: point.workers)
    largest = max(run.workers for run in several)
    counts = sorted({run.workers for run in chosen} | set(more_workers))
    measured = _by(chosen, lambda run: (run.mode, run.workers))
    cells = []
    for workers in counts:
        known = by_workers.get(workers) or by_workers.get(largest) or points
        compute = fit_compute(known)
        samples = _samples(chosen, workers, largest)
        for mode in _modes(workers, measured):
            found = measured.get((mode, workers), [])
            own = mode not in OVERLAPPING and found and workers > 1
            of_mode = [run for run in several if run.mode == mode]
            like = max(of_mode, key=lambda run: run.workers, default=work)
            predicted = predict(
                mode, workers, samples, compute, like.buckets_bytes, bench, overlaps=like.overlaps
            )
            cells.append(
                Cell(
                    predicted,
                    _measured(found),
                    fmean(run.sync_s for run in found) if own else None,
                )
            )
    if any(cell.is_far_off for cell in cells):
        cells = [cell for cell in cells if cell.measured]
    counts = sorted({cell.predicted.workers for cell in cells})
    assumed = (*lines, *how, *_assumptions(bench, work, largest, counts))
    return Outcome(
        cells=tuple(cells),
        runs=tuple(chosen),
        compute=fit_compute(points),
        bench=bench,
        gradient_bytes=work.gradient_bytes,
        buckets=len(work.buckets_bytes),
        assumptions=(*assumed, *(note for run in chosen for note in run.notes)),
        left_out=tuple(run for run in runs if run not in chosen),
    )


def _measured(runs: Sequence[Run]) -> Estimate | None:
    """Over the steps of one run; over the means of several."""
    return estimate(runs[0].steps_s if len(runs) == 1 else [run.step_s for run in runs])


def _modes(workers: int, measured: dict[Any, Any]) -> list[str]:
    if workers == 1:
        return [mode for mode in ("single", *MODES) if mode == "single" or (mode, 1) in measured]
    return [*MODES, *FURTHER]


def _by(items: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    found = defaultdict(list)
    for item in items:
        found[key(item)].append(item)
    return dict(found)


def _samples(runs: Sequence[Run], workers: int, largest: int) -> float:
    """Of one worker: as it was with so many, else as with the most that were run."""
    for wanted in (workers, largest):
        seen = [run.samples for run in runs if run.workers == wanted]
        if seen:
            return fmean(seen)
    raise AssertionError("the largest number of workers was run")


def _one_experiment(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The largest set of runs that differ in mode and workers only.

    Their global batch is the same, or each worker's part of it is, as it is held in weak scaling.
    """
    sets: dict[Any, list[Run]] = defaultdict(list)
    for run in runs:
        batch = int(run.settings.get("batch_size", 0))
        sets[run.held, "batch_size", batch].append(run)
        sets[run.held, "samples per worker", batch / run.workers].append(run)
    (held, shared_value, value), chosen = max(
        sets.items(),
        key=lambda item: (
            len({(run.mode, run.workers) for run in item[1]}),
            len(item[1]),
            item[0][1] == "batch_size",
        ),
    )
    left = len(runs) - len(chosen)
    named = [text for text in held if not text.endswith(" None")]
    lines = [f"all runs have {', '.join(named)} and {shared_value} {value:g}"]
    if left:
        lines.append(f"{left} of {len(runs)} runs have other settings and are left out")
    unknown = sorted({run.mode for run in chosen} - {"single", *MODES})
    if unknown:
        lines.append(f"there is no model of the mode {', '.join(unknown)}")
    return [run for run in chosen if run.mode not in unknown], lines


def _points(runs: Sequence[Run]) -> tuple[list[ComputePoint], list[str]]:
    """Steps whose backward pass is only that."""
    plain = [
        p for run in runs if run.mode not in OVERLAPPING or run.workers == 1 for p in run.points
    ]
    if plain:
        return plain, []
    found = [
        replace(point, backward_s=BACKWARD_OF_FORWARD * point.forward_s)
        for run in runs
        for point in run.points
    ]
    how = f"is therefore taken to be {BACKWARD_OF_FORWARD:g} times the forward pass"
    return found, [f"every run overlaps communication with its backward pass, which {how}"]


def _assumptions(bench: Bench, work: Run, largest: int, counts: Sequence[int]) -> list[str]:
    at = f"{bench.backend}, {bench.interface}, MTU {bench.mtu_bytes}"
    size = f"{work.gradient_bytes / 1e6:.1f} MB of gradients in {len(work.buckets_bytes)}"
    lines = [
        (
            "computing is fitted to these runs, so only the sync is a prediction; it is the slowest"
            " rank's of each step, and nothing is added for packing gradients into buckets, for "
            "averaging them and for what else communication costs the processor"
        ),
        (
            f"latency and bandwidth are those of {bench.workers} workers on {bench.nodes} nodes "
            f"({at}): all links alike and full duplex, switches without a limit of their own"
        ),
        (
            f"{size} collectives, but in each mode that was run its own; ddp, and the others with "
            "--overlap, hide all but the last of them behind the backward pass, as far as it lasts"
        ),
    ]
    if work.settings.get("bucket_mb") == 0 and len(work.buckets_bytes) == 1:
        lines.append("--bucket-mb 0 without records of collectives: their number is taken to be 1")
    if max(counts) > largest:
        lines.append(
            f"beyond {largest} workers each computes as many samples as there, as fast: the "
            "global batch grows with the workers"
        )
    used = ("gather", "scatter", "all_gather", "all_reduce")
    missing = [name for name in used if name not in bench.fits]
    if missing:
        lines.append(f"the bench has no {', '.join(missing)}: what is nearest stands in")
    if bench.note:
        share = payload_share(bench.mtu_bytes)
        lines.append(f"{bench.note}; {share:.1%} of their bits are payload")
    return lines
