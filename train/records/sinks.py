"""Write records: always as this rank's JSON lines, and on rank 0 to TensorBoard if asked for."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.errors import UsageError
from muster.run_files import METRICS, START, TENSORBOARD
from muster.writing import write_json

from .profile import Profiler
from .schema import (
    Collective,
    CollectivesRecord,
    EvalRecord,
    Record,
    RecordWriter,
    StepRecord,
)


class Sinks:
    """Writes each record to `metrics/rank_*.jsonl` of the run folder, and to TensorBoard.

    Raises:
        UsageError: TensorBoard is wanted but not installed.
    """

    def __init__(
        self,
        run_dir: Path,
        rank: int,
        *,
        tensorboard: bool = False,
        profile: bool = False,
        marks: dict[str, float] | None = None,
    ) -> None:
        """`marks`: when this process had what it needs for its first step."""
        self._lines = RecordWriter(METRICS.path(run_dir, rank=rank))
        self._profiler = Profiler(run_dir, rank) if profile else None
        self._board: Any = None
        self._collectives: Sequence[Collective] = []
        self._marks = {} if marks is None else marks
        self._start = START.path(run_dir) if rank == 0 else None
        self.total_steps: int | None = None  # of the whole run, if known
        if tensorboard and rank == 0:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise UsageError(
                    "--tensorboard needs the package tensorboard; pip install tensorboard"
                ) from None
            self._board = SummaryWriter(str(TENSORBOARD.path(run_dir, name="").parent))

    def write(self, record: Record) -> None:
        self._lines.write(record)
        if self._profiler is not None and isinstance(record, StepRecord):
            self._profiler.stepped()
        if self._board is None or not isinstance(record, StepRecord | EvalRecord):
            return
        if isinstance(record, StepRecord):
            values = {"loss": record.loss, "lr": record.lr, "grad_norm": record.grad_norm}
            for phase in ("data", "forward", "backward", "sync", "optimizer", "step"):
                values[f"seconds/{phase}"] = getattr(record, f"{phase}_s")
        else:
            values = {f"evaluation/{name}": value for name, value in record.metrics.items()}
        for name, value in values.items():
            self._board.add_scalar(name, value, record.step)

    def stepped(self, step: StepRecord, made: Sequence[Collective]) -> None:
        """Write `step`, and its gradient collectives if they differ from the last ones."""
        self.write(step)
        if self._start is not None:
            marks = {**self._marks, "step": time.time()}
            about = {"step": step.step, "total_steps": self.total_steps, "marks_unix_s": marks}
            write_json(self._start, about)
            self._start = None
        if made != self._collectives:
            self._collectives = made
            record = CollectivesRecord(step=step.step, rank=step.rank, collectives=made)
            self._lines.write(record)

    def close(self) -> None:
        self._lines.close()
        if self._profiler is not None:
            self._profiler.close()
        if self._board is not None:
            self._board.close()
