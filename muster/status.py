"""What a run is doing, as a value: for a `Job` in Python, and for `muster jobs`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What a run is doing: one word, and lines with more details."""

    word: str  # waiting, pending, running, done, stopped, failed, lost
    is_over: bool
    detail: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = f"{self.word} ({self.detail})" if self.detail else self.word
        return "\n".join((first, *self.notes))
