"""The errors a user can cause, each with the exit code it ends a command with."""

from __future__ import annotations

from collections.abc import Iterable

# Of a run that was stopped cleanly and can be continued: sysexits.h's "try again".
STOPPED = 75
# Of a run that should not be started again by itself: it fails without getting any further.
NO_RETRY = 93
# Of a command that was to wait for so long, as of timeout(1).
TIME_OVER = 124


class MusterError(Exception):
    """Something a user can act on: printed as one line, never as a traceback."""

    exit_code = 1


class UsageError(MusterError):
    """A wrong flag, file or input, found before any training starts."""

    exit_code = 2


# What each exit code says by itself; another one is that of a program which ended itself with it.
NAMES = {
    0: "done",
    MusterError.exit_code: "failed",
    UsageError.exit_code: "refused",
    STOPPED: "stopped",
    NO_RETRY: "given_up",
    TIME_OVER: "time_over",
}


def name_of(code: int) -> str:
    """What an exit code says, in one word, as documents of `--json` have it."""
    return NAMES.get(code, "signal" if code > 128 else "failed")


def text_of(error: BaseException) -> str:
    """What an error says; one of a program's own may fail where it is asked."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 (whatever its own code does)
        return "<its text cannot be had>"


def refuse(problems: Iterable[str], where: str = "") -> None:
    """Raise one `UsageError` that holds every problem at once; do nothing where there is none.

    Raises:
        UsageError: `problems` is not empty.
    """
    found = [f"{where}{problem}" for problem in problems]
    if found:
        raise UsageError("\n".join(found))


class RunFailed(MusterError):
    """A run did not end well; chained to what its function raised, where that can be unpickled."""

    def __init__(
        self,
        message: str,
        code: int,
        rank: int | None = None,
        host: str | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message, code, rank, host, traceback)
        self.message, self.exit_code = message, code
        self.rank, self.host = rank, host  # the first that failed; None: it was no rank's failure
        self.traceback = traceback  # the remote one, as text

    def __str__(self) -> str:
        return self.message
