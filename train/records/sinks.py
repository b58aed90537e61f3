"""Where a run's records go: this rank's JSON lines, and optional outputs.

The optional outputs are a tracker of metrics on rank 0, such as TensorBoard, and a trace of a few
steps on each rank, which https://ui.perfetto.dev opens. A user sees rank 0's lines, one progress
bar, and a table at the end, which sums up what `History` has counted.
"""

import json
import os
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from muster import extras
from muster.errors import UsageError, explained
from muster.printable import json_text
from muster.run_files import METRICS, PROFILE, START
from muster.writing import CannotWrite, write_json, writing

from .schema import PHASES, Collective, CollectivesRecord, EvalRecord, Record, StepRecord

if TYPE_CHECKING:
    from .trackers import Tracker

TRACKERS = ("tensorboard", "wandb")  # in trackers.py, by package name
FIRST_LOSSES = 5  # printed one by one, as in the courses
LINE_S = 10.0  # at a terminal, there is a line at least about this often
TIMED = ("step_s", "samples", "payload_bytes", *(f"{phase}_s" for phase in PHASES))
# The first step includes one-time costs, and the second one those of the profiler itself.
WAIT = 1
WARM_UP = 1
ACTIVE = 5


class Sinks:
    """Writes each record to `metrics/rank_*.jsonl` of the run folder, and to trackers."""

    def __init__(self, run_dir: Path, rank: int, *, profile: bool = False) -> None:
        self._run_dir, self._rank = run_dir, rank
        self._path = METRICS.path(run_dir, rank=rank)
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._profiler = start_tracer(run_dir, rank) if profile else None
        self._trackers: dict[str, Tracker] = {}
        self._collectives: Sequence[Collective] = []
        self._start = START.path(run_dir) if rank == 0 else None
        self.total_steps: int | None = None  # of the whole run, if known

    def log_with(self, names: Collection[str], last_step: int | None, given: str) -> None:
        """From now on, also show records in these trackers; only rank 0 does.

        `last_step`: the step after which this attempt begins, if it is known. `given`: the setting
        that names the trackers, for an error message.

        Raises:
            UsageError: the package of a tracker is not installed.
            MusterError: a tracker does not start.
        """
        for name in names if self._rank == 0 else ():
            if name in self._trackers:
                continue
            from . import trackers  # here, since few runs have one

            try:
                self._trackers[name] = trackers.KINDS[name](self._run_dir, last_step)
            except ImportError:
                raise UsageError(f"{given} {name}: {extras.without_tracker(name)}") from None

    def write(self, record: Record) -> None:
        """Write a record; its line is on its way to the disk when this returns.

        Raises:
            CannotWrite: the disk does not accept it; the message gives the reason.
        """
        try:
            self._file.write(_line(record))
        except OSError as error:
            raise CannotWrite(explained(error, self._path)) from error
        if self._profiler is not None and isinstance(record, StepRecord):
            self._profiler.step()
        if self._trackers and isinstance(record, StepRecord | EvalRecord):
            values = _tracked_values(record)
            for tracker in self._trackers.values():
                tracker.add(record.step, values)

    def stepped(self, step: StepRecord, made: Sequence[Collective]) -> None:
        """Write `step`, and its gradient collectives if they differ from the last ones."""
        self.write(step)
        if self._start is not None:
            times = {"step": step.step, "total_steps": self.total_steps, "time_unix_s": time.time()}
            write_json(self._start, times)
            self._start = None
        if made != self._collectives:
            self._collectives = made
            record = CollectivesRecord(step=step.step, rank=step.rank, collectives=made)
            self.write(record)

    def close(self) -> None:
        self._file.close()
        if self._profiler is not None:
            self._profiler.stop()
        for tracker in self._trackers.values():
            tracker.close()


def _tracked_values(record: StepRecord | EvalRecord) -> dict[str, float]:
    if isinstance(record, EvalRecord):
        return {f"evaluation/{name}": value for name, value in record.metrics.items()}
    values = {"loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm}
    seconds = {f"seconds/{phase}": getattr(record, f"{phase}_s") for phase in (*PHASES, "step")}
    return values | seconds


def _line(record: Record) -> str:
    fields = asdict(record)
    try:
        return json.dumps(fields, allow_nan=False) + "\n"
    except ValueError:  # NaN or infinity, in few records
        return json_text(fields) + "\n"


@dataclass
class History:
    """The data for the summary of a run.

    Steps are added up, so that memory does not grow with their number; each step is in the records
    on disk. The first step includes one-time costs: it is not in the sums once there are others.
    """

    first_losses: list[float] = field(default_factory=list)
    count: int = 0  # of steps, since this start
    sums: dict[str, float] = field(default_factory=dict)  # of `TIMED`
    last_loss: float | None = None  # of a batch; None if no step was left to do
    evaluations: list[EvalRecord] = field(default_factory=list)
    total_s: float = 0.0  # of steps, evaluations and checkpoints, since this start

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        before = self.sums if self.count > 1 else {}  # until then the sums hold the first step
        self.sums = {name: before.get(name, 0.0) + getattr(record, name) for name in TIMED}
        self.count += 1
        self.last_loss = record.loss
        if record.step <= FIRST_LOSSES:
            self.first_losses.append(record.loss)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run continues from: the part that is the same on every rank."""
        names = ("step", "epoch", "samples", "metrics")
        evaluations = [
            {name: getattr(evaluation, name) for name in names} for evaluation in self.evaluations
        ]
        return {"first_losses": list(self.first_losses), "evaluations": evaluations}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        unknown: dict[str, Any] = {"rank": 0, "local_samples": 0, "eval_s": 0.0}
        self.first_losses = list(state["first_losses"])
        self.evaluations = [
            EvalRecord(**unknown | evaluation) for evaluation in state["evaluations"]
        ]


class Console:
    """Prints on rank 0 only, and nothing at all with --quiet.

    The bar is drawn on a terminal, or if a launcher that shows this output on its own terminal says
    so (MUSTER_TTY, the terminal's width in columns).
    """

    def __init__(self, *, speaks: bool, env: Mapping[str, str] = os.environ) -> None:
        self._speaks = speaks
        self._columns = int(env.get("MUSTER_TTY") or 0) or None
        self._draws = speaks and (sys.stdout.isatty() or self._columns is not None)
        self._bar: Any = None
        self._printed_s = time.monotonic()

    @property
    def is_line_due(self) -> bool:
        """Whether a person at a terminal has seen no new line for a while."""
        return self._draws and time.monotonic() - self._printed_s >= LINE_S

    def line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._printed_s = time.monotonic()
        if self._bar is not None:
            self._bar.write(text, file=sys.stdout)
        elif self._speaks:
            print(text, flush=True)

    def start(self, total_steps: int, done: int = 0) -> None:
        """Show the bar."""
        if self._draws:
            from tqdm import tqdm  # here: a program's `muster.record` needs torch alone

            self._bar = tqdm(
                total=total_steps,
                initial=done,
                file=sys.stdout,
                ncols=self._columns,
                unit="step",
                leave=False,
                mininterval=0.25,
            )

    def advance(self, loss: float) -> None:
        """Move the bar by one step."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
            self._bar.update()

    def stop(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def table(self, rows: Sequence[tuple[str, str]]) -> None:
        """Print names and values."""
        width = max(len(name) for name, _ in rows)
        self.line("".join(f"\n  {name:<{width}}   {value}" for name, value in rows))


def start_tracer(run_dir: Path, rank: int) -> profile:
    """Trace steps 3 to 7 into `profile/rank_*.json` of the run folder; the phases have names.

    A shorter run leaves a trace of the steps that it has.
    """
    path = PROFILE.path(run_dir, rank=rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    made = profile(
        activities=activities,
        schedule=schedule(wait=WAIT, warmup=WARM_UP, active=ACTIVE, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(str(path)),
        record_shapes=True,
    )
    made.start()
    return made
