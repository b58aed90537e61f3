"""How a worker ends: an exit code, one message, and a record that tells cause from consequence.

When one of N workers fails, the other N - 1 fail moments later, with network errors. To find the
cause, one must know which of them failed first. So each worker judges its own end: an error that
says "the other side is gone" is a consequence (`lost_peer`), everything else a cause. The guard is
around everything that a worker does. SIGTERM becomes the exception `Stopped`, raised once. When the
guard begins to write the record, further signals are ignored, since agents repeat them.
"""

import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType
from typing import Literal

from muster import extras
from muster.errors import STOPPED, MusterError, UsageError, explained, is_full, text_of
from muster.orderly_stop import StoppedCleanly
from muster.run_files import RANK_END
from muster.worker.lost_peer import CONSEQUENCE, is_consequence, report_lost_peer
from muster.writing import CannotWrite, write_json

from ..records.schema import ExitRecord
from .world import World

Cause = Literal["done", "stopped", "refused", "crash", "lost_peer", "signal"]


class PeerFailed(MusterError):
    """Another worker could not continue, so this one cannot either.

    `missing`: the ranks that a collective waited for without success, if they are known.
    """

    def __init__(self, message: str, missing: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class Stopped(BaseException):
    """A signal requested this worker's end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class ExitGuard:
    """A context around everything a worker does: records any kind of end once, has the exit code.

    Once `run_dir` is known, `exits/rank_*.json` in it records how and why this rank ended. A rank
    that was killed leaves no such file.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.code = 0
        self._owner = os.getpid()
        self._path: Path | None = None  # of the record

    def record_in(self, run_dir: Path) -> None:
        """Set the run folder."""
        self._path = RANK_END.path(run_dir, rank=self.world.rank)

    def __enter__(self) -> "ExitGuard":
        signal.signal(signal.SIGTERM, self._stop)
        return self

    def _stop(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # agents repeat it; it would hit us as we end
        raise Stopped(number)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if os.getpid() != self._owner:  # a forked child does not record for its rank
            return False
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all that is left is to record how it ended
        self.code, cause, message = judge(error) if error is not None else (0, "done", "")
        if cause == "lost_peer":
            report_lost_peer(message, trace)
        lines = "".join(traceback.format_exception(error)) if cause == "crash" else ""
        prefix = "" if cause == "stopped" else "error: "
        if self.world.is_led and cause in ("lost_peer", "signal"):
            prefix = f"{CONSEQUENCE}error: "
        problems = message.splitlines()  # as in the record, which a launcher finds in the output
        if isinstance(error, MusterError) and not self.world.is_led:
            problems = error.problems  # each with its tip
        text = lines or "".join(f"{prefix}{problem}\n" for problem in problems)
        if self._path is not None:
            record = ExitRecord(
                rank=self.world.rank, host=self.world.host, pid=os.getpid(),
                time_unix_s=time.time(), code=self.code, cause=cause, message=message,
                traceback=lines, peak_memory_bytes=peak_memory_bytes(),
                peak_gpu_memory_bytes=peak_gpu_memory_bytes(),
                missing=error.missing if isinstance(error, PeerFailed) else (),
            )  # fmt: skip
            try:
                write_json(self._path, asdict(record))
            except CannotWrite as unwritten:
                if str(unwritten) != message:
                    text = f"error: {unwritten}\n{text}"
        with suppress(OSError):  # it goes to a file of the run folder, perhaps on a full disk
            sys.stderr.write(text)
            sys.stderr.flush()
        return True


def peak_memory_bytes() -> int:
    """The peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts KiB


def peak_gpu_memory_bytes() -> int:
    """The peak memory that torch has reserved on one of the GPUs; 0 if it used none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return 0
    with suppress(RuntimeError):  # a failed GPU does not answer
        return max(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count())), default=0)
    return 0


def judge(error: BaseException) -> tuple[int, Cause, str]:
    """Exit code, cause and message for the error that ended a worker."""
    if isinstance(error, StoppedCleanly):
        return STOPPED, "stopped", str(error)
    if isinstance(error, PeerFailed):
        return error.exit_code, "lost_peer", str(error)
    if isinstance(error, MusterError):
        return error.exit_code, "refused", str(error)
    if isinstance(error, ModuleNotFoundError) and (lacking := extras.explained(error)):
        return UsageError.exit_code, "refused", lacking
    if isinstance(error, Stopped):
        return 128 + error.number, "signal", f"stopped by {error}"
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT, "signal", "stopped by SIGINT"
    if is_full(error):
        return MusterError.exit_code, "refused", explained(error)
    text = " ".join(text_of(error).split())
    if isinstance(error, RuntimeError) and is_consequence(text):
        return 1, "lost_peer", f"lost another worker ({text[:200]})"
    return 1, "crash", f"{type(error).__name__}: {text}"
