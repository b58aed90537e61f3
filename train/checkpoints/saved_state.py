"""What state.json of a checkpoint holds: written, read and checked in this one place."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from .exchange import ALL
from .storage import Damaged, Files, State


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The state of a checkpoint, the same for every rank that reads it."""

    step: int
    world_size: int  # of the ranks that saved it
    objects: list[str] = field(default_factory=list)  # their names
    # The states of objects that are small and plain JSON. Each other object has a file.
    values: dict[str, Any] = field(default_factory=dict)
    by_rank: list[str] = field(default_factory=list)  # objects with a state for each rank
    undeclared: list[str] = field(default_factory=list)  # those of them that nobody has declared
    # for each object, and each of its DDP replicas: its parameters in the order of the buckets
    buckets: dict[str, list[Any]] = field(default_factory=dict)
    best: float | None = None  # the best metric so far
    best_step: int | None = None
    best_by: str | None = None  # metric:min or metric:max
    run_id: str | None = None  # a launcher that restarts a run looks for its own

    def as_json(self) -> State:
        return asdict(self)

    @classmethod
    def parse(cls, raw: State, files: Files) -> "SavedState":
        """The state in `raw`, if `files` belong to it.

        Raises:
            Damaged: no version has written these.
        """
        known = {part.name: raw[part.name] for part in fields(cls) if part.name in raw}
        if not all(isinstance(known.get(name), kind) for name, kind in KINDS.items()):
            raise Damaged("was not written by Muster, or lacks a part")
        saved = cls(**{name: part for name, part in known.items() if part is not None})
        if not (_is_whole(saved) and _fits(saved, files)):
            raise Damaged("was not written by Muster, or lacks a part")
        return saved


KINDS: dict[str, Any] = {
    "step": int,
    "world_size": int,
    "objects": list | None,
    "values": dict | None,
    "by_rank": list | None,
    "undeclared": list | None,
    "buckets": dict | None,
    "best": int | float | None,
    "best_step": int | None,
    "best_by": str | None,
    "run_id": str | None,
}


def _is_whole(saved: SavedState) -> bool:
    names = (*saved.objects, *saved.by_rank, *saved.undeclared)
    return all(isinstance(name, str) for name in names) and all(
        isinstance(orders, list) for orders in saved.buckets.values()
    )


def _fits(saved: SavedState, files: Files) -> bool:
    """Whether `files` hold what every checkpoint has, and all objects of `saved`."""
    sync = files.get("sync", {})
    if not (
        isinstance(sync, Mapping)
        and all(isinstance(name, str) for name in sync)
        and all(isinstance(tensor, Tensor) for tensor in sync.values())
    ):
        return False

    def is_of_each_rank(name: str) -> bool:
        owners = map(str, range(saved.world_size))
        return f"{ALL}/{name}/state" in sync or all(
            f"{rank}/{name}/state" in sync for rank in owners
        )

    return is_of_each_rank("generators") and all(
        name in saved.values or name in files or (name in saved.by_rank and is_of_each_rank(name))
        for name in saved.objects
    )
