"""Checkpoints of anyone's program: whatever has a `state_dict`, saved and resumed bit for bit.

A state is taken apart into tensors, which go into one safetensors file for each object under the
path of their keys (`state/0/exp_avg`), and all else, which goes into state.json with a marker at
the place of each tensor. Nothing is pickled or unpickled; what is neither is refused by its path.
"""

import json
import math
import os
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from muster.errors import STOPPED, UsageError
from muster.orderly_stop import stopping

from ..checkpoints.exchange import Files, gather_text
from ..checkpoints.manager import CheckpointManager, StepRequests
from ..sync.ranks import Ranks, current_ranks
from .recorder import write_record

TENSOR, DICT, TUPLE = "$tensor", "$dict", "$tuple"
UNITS = {"step": "step", "steps": "step", "min": "min"}
NUMBERS = (bool, int, float, str, type(None))


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or of one's own."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def checkpoints(
    folder: str | Path | None = None,
    *,
    every: str | None = None,
    keep_last: int = 2,
    **objects: Stateful,
) -> "Checkpoints":
    """Saves and resumes `objects`; every rank calls this, and its methods, alike.

    Objects are the same on every rank, as under data parallelism they are: one rank of each file
    system writes. Random generators are saved for each rank.

    Args:
        folder: by default `MUSTER_CHECKPOINTS`, which a run that is started again finds again.
        every: "100 steps", "10 min"; None: only when asked to stop, and by `save`.
        keep_last: how many stay.
        objects: by a name each, such as model=model, optimizer=optimizer, steps=steps.

    Raises:
        UsageError: no folder is known, or `every` is not understood.
    """
    place = folder or os.environ.get("MUSTER_CHECKPOINTS")
    if not place:
        raise UsageError(
            "muster.checkpoints: MUSTER_CHECKPOINTS is not set; give a folder, call muster.init() "
            "first, or start the program with one of Muster's launchers"
        )
    if "sync" in objects or not objects:
        raise UsageError("muster.checkpoints: give objects by names other than 'sync', model=model")
    ranks = current_ranks()
    manager = CheckpointManager(
        Path(place), ranks, ranks.device,
        writes=_writes(Path(place), ranks), note=write_record,
        interval=_interval(every), keep_last=keep_last,
    )  # fmt: skip
    return Checkpoints(manager, ranks, objects)


class Checkpoints:
    """See `checkpoints`. Also usable as a context manager, which waits for the last one."""

    def __init__(
        self, manager: CheckpointManager, ranks: Ranks, objects: Mapping[str, Stateful]
    ) -> None:
        self._manager, self._ranks, self._state = manager, ranks, _State(objects)
        self.step = 0  # the last one that `saved_if_due` was called with, or resumed from

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self._manager.folder

    def resume(self) -> int:
        """Go on from the newest whole checkpoint; its step, or 0 where there is none yet.

        Raises:
            UsageError: it is of other objects.
        """
        found = self._manager.find("auto", self._state.problems, lambda line: None)
        if found is None:
            return 0
        self._manager.restore(self._state, *found)
        self.step = int(found[1]["step"])
        return self.step

    def after_step(self, step: int) -> None:
        """Save if it is time to, or if some rank was asked to stop: then end in order, with 75.

        One small collective. The files are written while the training goes on.

        Raises:
            SystemExit: a rank was asked to stop; all that is asked for is on the disk.
        """
        self.step = step
        mine = StepRequests(stopping(), self._manager.is_due(step), self._manager.is_busy)
        row = torch.tensor(mine, dtype=torch.float64, device=self._ranks.device)
        asked = StepRequests(*self._ranks.all_gather(row).any(0).tolist())
        if asked.save or asked.stop:
            self._manager.make(step, self._state, asked)
        if asked.stop:
            raise SystemExit(STOPPED)

    def save(self, step: int) -> None:
        """Save now, and return when it is on the disk."""
        self.step = step
        self._manager.make(step, self._state, StepRequests(stop=True))

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *error: object) -> None:
        self._manager.close()


class _State:
    """`HasState` of the checkpoints, for objects with a `state_dict`."""

    def __init__(self, objects: Mapping[str, Stateful]) -> None:
        self._objects = objects
        self._rest: dict[str, Any] = {}

    def own_state(self) -> Mapping[str, Tensor]:
        return {}

    def tensors(self, *, keeps: bool) -> dict[str, dict[str, Tensor]]:
        found = dict[str, dict[str, Tensor]]()
        if not keeps:
            return found
        for name, one in self._objects.items():
            found[name] = dict[str, Tensor]()
            self._rest[name] = _apart(one.state_dict(), (name,), found[name])
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"objects": self._rest}

    def problems(self, state: dict[str, Any]) -> list[str]:
        saved, wanted = set(state.get("objects", ())), set(self._objects)
        if saved == wanted:
            return []
        return [f"it holds {', '.join(sorted(saved))}; here are {', '.join(sorted(wanted))}"]

    def load(self, files: Files, state: dict[str, Any], own: Mapping[str, Tensor]) -> None:
        for name, one in self._objects.items():
            one.load_state_dict(_together(state["objects"][name], files.get(name, {})))


def _apart(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """`value` for JSON; tensors go into `tensors`, copied to the CPU, by their path.

    Raises:
        UsageError: something is neither a tensor, a number, a text, a list nor a dict.
    """
    if isinstance(value, Tensor) and value.layout == torch.strided:
        key = "/".join(path[1:])
        tensors[key] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: key}
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, NUMBERS):
        return value
    if isinstance(value, list | tuple):
        found = [_apart(one, (*path, str(at)), tensors) for at, one in enumerate(value)]
        return found if isinstance(value, list) else {TUPLE: found}
    if isinstance(value, Mapping):
        pairs = []
        for key, one in value.items():
            if not isinstance(key, NUMBERS):
                raise _refused(path, key, "a key that is")
            pairs.append([key, _apart(one, (*path, str(key)), tensors)])
        return {DICT: pairs}
    raise _refused(path, value, "")


def _together(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_together(one, tensors) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    match kind:
        case "$tensor":
            return tensors[inner].clone()
        case "$tuple":
            return tuple(_together(one, tensors) for one in inner)
        case "$float":
            return float(inner)
        case _:
            return {key: _together(one, tensors) for key, one in inner}


def _refused(path: tuple[str, ...], value: object, what: str) -> UsageError:
    where = "".join([path[0], *(f"[{one}]" for one in path[1:])])
    return UsageError(
        f"muster.checkpoints: the state of {where} holds {what}{' ' if what else ''}a "
        f"{type(value).__name__}; only tensors, numbers, texts, lists, tuples and dicts are saved"
    )


def _interval(every: str | None) -> tuple[float, str] | None:
    if every is None:
        return None
    count, _, unit = every.strip().partition(" ")
    try:
        found = (float(count), UNITS[unit.strip()])
    except (ValueError, KeyError):
        found = (0.0, "")
    if found[0] <= 0 or (found[1] == "step" and found[0] != int(found[0])):
        raise UsageError(f"muster.checkpoints: every is {every!r}; write '100 steps' or '10 min'")
    return found


def _writes(folder: Path, ranks: Ranks) -> bool:
    """Whether this rank is the first of those that see the same `folder`, which rank 0 makes.

    Rank 0 is, and one rank of each host that has a disk of its own. Collective.

    Raises:
        UsageError: rank 0 cannot make the folder.
    """
    mark, problem = "", ""
    if ranks.rank == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, mark = tempfile.mkstemp(prefix=".seen-", dir=folder)
            os.close(handle)
        except OSError as error:
            problem = f"muster.checkpoints: {folder}: {error.strerror}"
    mark, problem = json.loads(gather_text(ranks, json.dumps([mark, problem]), ranks.device)[0])
    if problem:
        raise UsageError(problem)
    own = "" if Path(mark).exists() else socket.gethostname()
    hosts = gather_text(ranks, own, ranks.device)  # of those that do not see it
    if ranks.rank == 0:
        Path(mark).unlink()
    return ranks.rank == 0 or (own != "" and hosts.index(own) == ranks.rank)
