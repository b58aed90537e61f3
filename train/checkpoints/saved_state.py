"""What state.json of a checkpoint holds: written, read and checked in this one place.

Checkpoints of version 0.2.0 are read, too. Their trainer had a form of its own, without objects.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from .storage import Damaged, Files, State

# Of a trainer's state before it had objects: the parts, each with whether it may be missing.
OLD_PARTS = {
    "at": False, "schedule": False, "precision": False, "settings": False, "samples": False,
    "first_losses": False, "evaluations": False, "split": False, "schedule_end": True,
}  # fmt: skip
OLD_FILES = ("model", "optimizer")


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """The state of a checkpoint, the same for every rank that reads it."""

    step: int
    world_size: int  # of the ranks that saved it
    objects: list[str] = field(default_factory=list)  # their names
    # The states of objects that are small and plain JSON. Each other object has a file.
    values: dict[str, Any] = field(default_factory=dict)
    by_rank: list[str] = field(default_factory=list)  # objects whose states differ by rank
    # for each object, and each of its DDP replicas: its parameters in the order of the buckets
    buckets: dict[str, list[Any]] = field(default_factory=dict)
    best: float | None = None  # the best metric so far
    best_step: int | None = None
    best_by: str | None = None  # metric:min or metric:max
    run_id: str | None = None  # a launcher that restarts a run looks for its own

    def as_json(self) -> State:
        return asdict(self)

    @classmethod
    def parse(cls, raw: State, files: Files) -> "tuple[SavedState, Files]":
        """The state in `raw`, and the files that belong to it, of this or an older version.

        Raises:
            Damaged: no version has written these.
        """
        if "at" in raw and "objects" not in raw:
            raw, files = _from_old_trainer(raw, files)
        known = {part.name: raw[part.name] for part in fields(cls) if part.name in raw}
        best = known.get("best")
        if isinstance(best, float) and not math.isfinite(best):  # older ones may hold NaN
            known |= {"best": None, "best_step": None}
        if not all(isinstance(known.get(name), kind) for name, kind in KINDS.items()):
            raise Damaged("was not written by Muster, or lacks a part")
        saved = cls(**{name: part for name, part in known.items() if part is not None})
        if not (_is_whole(saved) and _fits(saved, files)):
            raise Damaged("was not written by Muster, or lacks a part")
        return saved, files


KINDS: dict[str, Any] = {
    "step": int,
    "world_size": int,
    "objects": list | None,
    "values": dict | None,
    "by_rank": list | None,
    "buckets": dict | None,
    "best": int | float | None,
    "best_step": int | None,
    "best_by": str | None,
    "run_id": str | None,
}


def _is_whole(saved: SavedState) -> bool:
    names = (*saved.objects, *saved.by_rank)
    return all(isinstance(name, str) for name in names) and all(
        isinstance(orders, list) for orders in saved.buckets.values()
    )


def _fits(saved: SavedState, files: Files) -> bool:
    """Whether `files` hold what every checkpoint has, and all objects of `saved`."""
    generators = files.get("generators")
    sync = files.get("sync", {})
    return (
        isinstance(generators, list)
        and len(generators) == saved.world_size
        and all(isinstance(states, dict) for states in generators)
        and isinstance(sync, dict)
        and all(isinstance(name, str) for name in sync)
        and all(isinstance(tensor, Tensor) for tensor in sync.values())
        and all(name in saved.values or name in files for name in saved.objects)
    )


def _from_old_trainer(raw: State, files: Files) -> tuple[State, Files]:
    """The state and the files of a trainer of version 0.2.0 or older, in today's form."""
    missing = [name for name, may_miss in OLD_PARTS.items() if name not in raw and not may_miss]
    sync = files.get("sync", {})
    if missing or not isinstance(sync, dict):
        raise Damaged("was not written by Muster, or lacks a part")
    values = {
        "schedule": raw["schedule"],
        "precision": raw["precision"],
        "position": raw["at"],
        "split": raw["split"] or {"weights": None},
        "history": {name: raw[name] for name in ("first_losses", "evaluations")},
        "settings": {
            "settings": raw["settings"],
            "samples": raw["samples"],
            "schedule_end": raw.get("schedule_end"),
        },
    }
    objects = [*OLD_FILES, *values]
    return {**raw, "objects": objects, "values": values}, {**files, "sync": _tensors_of_model(sync)}


def _tensors_of_model(sync: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The sync mode's own tensors, RANK/NAME, as those of the model: RANK/model/NAME."""
    parts = [(name.partition("/"), tensor) for name, tensor in sync.items()]
    return {f"{owner}/model/{name}": tensor for (owner, _, name), tensor in parts}
