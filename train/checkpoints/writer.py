"""Write checkpoints while training continues: a step waits only for the copy in memory."""

import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from muster.errors import NO_RETRY, MusterError, is_full

from ..records.schema import CheckpointRecord
from . import storage
from .storage import Files, SavedState

FIRST_REPORT_S = 10.0  # after which a wait is reported
LONGEST_REPORT_S = 300.0  # the longest interval between later reports


class NotWritten(MusterError):
    """A checkpoint that a run must leave behind is not on the disk; the training itself went on."""


class TrainedButNotSaved(NotWritten):
    """The training is over, so starting it again would only repeat it."""

    exit_code = NO_RETRY


class Writer:
    """Writes one checkpoint at a time, in its own thread, and removes old ones."""

    def __init__(
        self, folder: Path, *, keep_last: int, rank: int, note: Callable[[CheckpointRecord], None]
    ) -> None:
        self.folder = folder
        self._keep_last = keep_last
        self._rank = rank
        self._note = note
        self._thread: threading.Thread | None = None
        self._step, self._started = -1, 0.0  # what is being written, and since when
        self._failed: dict[int, str] = {}  # by step, the reason why there is no checkpoint of it
        self._best: int | None = None  # the step of the last best checkpoint on the disk
        # the step after which this run continues the chain; None once later checkpoints of the
        # folder have been set aside
        self.goes_on_from: int | None = -1
        self._records: list[CheckpointRecord] = []  # from the thread to the training

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written; also passes on the records of finished ones."""
        busy = self._thread is not None and self._thread.is_alive()
        if not busy:
            self.wait()
        return busy

    def start(self, files: Files, saved: SavedState, stall_s: float) -> None:
        """Begin to write a checkpoint; from now on, `files` and `saved` must not be changed.

        The checkpoint of the state's `best_step` is kept, however old it is.
        """
        self.wait()
        step = saved.step
        self._step = step
        self._started = time.perf_counter()

        def write() -> None:
            error = ""
            try:
                self._set_later_ones_aside()
                storage.write(self.folder, files, saved)
                self._failed.pop(step, None)  # after an earlier try
                best = saved.best_step
                if best not in self._failed:
                    self._best = best
                storage.prune(self.folder, self._keep_last, self._best)
            except Exception as failed:  # noqa: BLE001  the training continues after any error
                error = self._failed[step] = self._complain(step, failed)
            record = CheckpointRecord(
                step=step, rank=self._rank, path=str(self.folder), error=error,
                payload_bytes=_tensor_bytes(files), stall_s=stall_s, write_s=self.busy_s,
            )  # fmt: skip
            self._records.append(record)

        self._thread = threading.Thread(target=write, name="checkpoint")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written; report a long wait now and then."""
        pause_s = FIRST_REPORT_S
        while self._thread is not None:
            self._thread.join(pause_s)
            if self._thread.is_alive():
                pause_s = min(2 * pause_s, LONGEST_REPORT_S)
                warn(f"waiting for the disk: {self.progress}")
            else:
                self._thread = None
        while self._records:
            self._note(self._records.pop(0))

    @property
    def busy_s(self) -> float:
        """Seconds since the last write began."""
        return time.perf_counter() - self._started

    @property
    def progress(self) -> str:
        """What is being written, where, and for how long."""
        return f"writing step {self._step} to {self.folder} has taken {self.busy_s:.0f} s so far"

    def problems(self, *steps: int | None) -> list[str]:
        """Why the last checkpoint or those of `steps` are not on the disk; waits for the last."""
        self.wait()
        wanted = dict.fromkeys((*steps, self._step))
        return [self._failed[step] for step in wanted if step in self._failed]

    def _set_later_ones_aside(self) -> None:
        if self.goes_on_from is None:
            return
        if steps := storage.set_aside(self.folder, self.goes_on_from):
            listed = ", ".join(map(str, steps))
            warn(
                f"this run does not continue from the checkpoints of step {listed} in "
                f"{self.folder}; they were moved to {self.folder / storage.SET_ASIDE}"
            )
        self.goes_on_from = None

    def _complain(self, step: int, error: Exception) -> str:
        good = "there is no earlier checkpoint"
        if earlier := storage.list_checkpoints(self.folder)[:1]:
            good = f"the last intact checkpoint is of step {earlier[0].step}"
        reason = "the disk is full" if is_full(error) else getattr(error, "strerror", None)
        reason = reason or f"{type(error).__name__}: {error}"
        location = f"{self.folder} on {socket.gethostname()}"
        text = f"step {step}: the checkpoint could not be written to {location}: {reason}; {good}"
        warn(text)
        return text


def warn(text: str) -> None:
    """Print a warning for the users who watch this run, even with --quiet."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


def _tensor_bytes(value: Any) -> int:
    """The bytes of all tensors in `value`."""
    if isinstance(value, Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, Mapping) else value
    return sum(map(_tensor_bytes, parts)) if isinstance(value, Mapping | list | tuple) else 0
