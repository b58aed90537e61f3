"""What a run is doing, as a value: of a `Job` from Python, and of `muster jobs`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Status:
    """What a run is doing: a word, and more details in lines."""

    word: str  # waiting, pending, running, done, stopped, failed, lost
    is_over: bool
    detail: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        first = f"{self.word} ({self.detail})" if self.detail else self.word
        return "\n".join((first, *self.notes))
