"""Checkpoints are written while training goes on: a step waits for the copy in memory only."""

import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from configs.errors import MusterError
from configs.writing import is_full
from train.checkpoints import folder as on_disk
from train.measure.records import CheckpointRecord


class Writer:
    """Writes one checkpoint at a time, in a thread of its own, and removes old ones."""

    def __init__(
        self, folder: Path, *, keep_last: int, rank: int, note: Callable[[CheckpointRecord], None]
    ) -> None:
        self.folder = folder
        self.last: on_disk.Checkpoint | None = None  # that this writer has finished
        self.best: int | None = None  # the step that is kept, however old
        self._keep_last, self._rank, self._note = keep_last, rank, note
        self._thread: threading.Thread | None = None
        self._records: list[CheckpointRecord] = []  # from the thread, for the one that trains

    @property
    def is_busy(self) -> bool:
        """Whether one is being written; notes those that are done."""
        busy = self._thread is not None and self._thread.is_alive()
        if not busy:
            self.wait()
        return busy

    def start(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        *,
        stall_s: float,
    ) -> None:
        """Begin to write a checkpoint of copies that nobody changes any more."""
        self.wait()
        self._thread = threading.Thread(
            target=self._write, args=(step, tensors, state, stall_s), name="checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        while self._records:
            self._note(self._records.pop(0))

    def require(self, step: int) -> on_disk.Checkpoint:
        """The checkpoint of `step`, when it is on the disk.

        Raises:
            MusterError: it could not be written.
        """
        self.wait()
        if self.last is None or self.last.step != step:
            raise MusterError(f"step {step}: no checkpoint could be written to {self.folder}")
        return self.last

    def _write(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, Tensor]],
        state: Mapping[str, Any],
        stall_s: float,
    ) -> None:
        started, error = time.perf_counter(), ""
        try:
            self.last = on_disk.write(self.folder, step, tensors, state)
            on_disk.prune(self.folder, self._keep_last, self.best)
        except OSError as failed:
            error = self._complain(step, failed)
        self._records.append(
            CheckpointRecord(
                step=step,
                rank=self._rank,
                path=str(self.folder),
                payload_bytes=sum(one.nbytes for own in tensors.values() for one in own.values()),
                stall_s=stall_s,
                write_s=time.perf_counter() - started,
                error=error,
            )
        )

    def _complain(self, step: int, error: OSError) -> str:
        left = on_disk.found(self.folder)
        kept = f"the last good one is that of step {left[0].step}" if left else "there is none yet"
        why = "the disk is full" if is_full(error) else (error.strerror or str(error))
        text = f"step {step}: no checkpoint in {self.folder}: {why}; {kept}"
        print(f"warning: {text}", file=sys.stderr, flush=True)
        return text
