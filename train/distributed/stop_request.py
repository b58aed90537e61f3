"""A signal asks a training to stop; it does so at the end of a step, on all ranks at once."""

import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

from muster.orderly_stop import FOLDER, leave_notices_to_the_agent


class StoppedCleanly(BaseException):
    """The training ended early, with a checkpoint to continue from."""

    def __init__(self, step: int, why: str, checkpoint: Path) -> None:
        super().__init__(
            f"stopped cleanly after step {step} ({why}); go on with the same command and "
            f"--resume {checkpoint}"
        )
        self.step, self.why, self.checkpoint = step, why, checkpoint

    def facts(self) -> dict[str, Any]:
        """The content of `stopped.json` in the run folder, by which the run can be continued."""
        return {"step": self.step, "why": self.why, "resume": str(self.checkpoint)}


class StopRequest:
    """A context: SIGTERM, SIGINT and the chosen signal are requests; a second SIGINT is not."""

    def __init__(self, stop_signal: str) -> None:
        self.why = ""  # the signal's name, once there was one
        self._numbers = (signal.SIGTERM, signal.SIGINT, signal.Signals[f"SIG{stop_signal}"])
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()
        folder = os.environ.get(FOLDER)
        self._sign = Path(folder) / str(self._owner) if folder else None

    def __enter__(self) -> "StopRequest":
        if self._sign is not None:
            leave_notices_to_the_agent()
        for number in self._numbers:
            self._before[number] = signal.signal(number, self._take)
        if self._sign is not None:
            self._sign.touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A worker that is stopping still accepts requests and keeps its reason: a scheduler and an
        # agent both ask, and the last one must not turn a clean end into another.
        if kind is StoppedCleanly:
            return
        if self._sign is not None:
            self._sign.unlink(missing_ok=True)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a forked data loader has inherited this handler
            return
        if self.why and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.why = self.why or self._reason() or signal.Signals(number).name

    def _reason(self) -> str:
        """The agent's reason, from the file by which this worker announced that it can stop."""
        return self._sign.read_text() if self._sign is not None and self._sign.exists() else ""
