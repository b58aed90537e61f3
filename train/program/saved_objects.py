"""Checkpoints of any program: any object with a `state_dict` is saved and resumed bit for bit.

A state holds tensors, numbers, strings, and lists, tuples and dicts of them: what torch.load
accepts with weights_only. Anything else is refused; the message has its path.
"""

import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from muster.arguments import methods, whole_number
from muster.errors import STOPPED, UsageError, refuse
from muster.orderly_stop import stopping

from ..checkpoints.exchange import sees_first
from ..checkpoints.manager import CheckpointManager, StepRequests
from ..checkpoints.storage import Files, State
from ..sync.ranks import Ranks, current_ranks
from .recorder import last_asked, write_record

UNITS = {"step": "step", "steps": "step", "min": "min"}
NUMBERS = (bool, int, float, str, type(None))


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler, `muster.steps`, or an object of yours."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def checkpoints(
    folder: str | Path | None = None,
    *,
    every: str | None = None,
    keep_last: int = 2,
    **objects: Stateful,
) -> "Checkpoints":
    """Save and resume `objects`; every rank calls this, and its methods, at the same places.

    Objects must be the same on every rank, as with data parallelism: one rank of each file system
    writes them. Random generators are saved for each rank.

        >>> model = torch.nn.Linear(2, 1)
        >>> with muster.checkpoints("saved", every="100 steps", model=model) as checkpoints:
        ...     for step in range(checkpoints.resume() + 1, 101):
        ...         checkpoints.after_step(step)
        >>> os.listdir("saved")
        ['step_00000100']

    Args:
        folder: by default `MUSTER_CHECKPOINTS`, which stays the same when a run is restarted.
        every: "100 steps", "10 min"; None: only when asked to stop, and by `save`.
        keep_last: how many of the latest are kept.
        objects: each with a name, such as model=model, optimizer=optimizer, steps=steps.

    Raises:
        UsageError: no folder is known, or an argument is invalid.
    """
    refuse(_problems(keep_last, objects), where="muster.checkpoints: ")
    if not (place := folder or os.environ.get("MUSTER_CHECKPOINTS")):
        raise UsageError(
            "muster.checkpoints: MUSTER_CHECKPOINTS is not set; give a folder, call muster.init() "
            "first, or start the program with one of Muster's launchers"
        )
    interval, ranks = _interval(every), current_ranks()
    manager = CheckpointManager(
        Path(place), ranks,
        writes=sees_first(Path(place), ranks, socket.gethostname()), note=write_record,
        interval=interval, keep_last=keep_last,
    )  # fmt: skip
    return Checkpoints(manager, ranks, objects)


def _problems(keep_last: int, objects: Mapping[str, Stateful]) -> Iterator[str]:
    yield from whole_number("keep_last", keep_last, 1)
    if not objects:
        yield "there is nothing to save; give objects by names: model=model"
    for name, one in objects.items():
        if name in ("sync", "generators") or not name.isidentifier():  # names of files
            yield f"an object cannot be called {name!r}; give it another name: model=model"
        yield from methods(name, one, "state_dict", "load_state_dict")


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """See `checkpoints`. Also usable as a context manager, which waits for the last one."""

    def __init__(
        self, manager: CheckpointManager, ranks: Ranks, objects: Mapping[str, Stateful]
    ) -> None:
        self._manager, self._ranks, self._state = manager, ranks, _State(objects)
        self.folder = manager.folder
        self._answers = dict[int, Tensor]()  # replies to the requests after a step
        self.step = 0  # the last step given to `after_step`, or resumed from

    def resume(self) -> int:
        """Resume from the newest whole checkpoint; return its step, or 0 if there is none yet.

        Raises:
            UsageError: it is a checkpoint of other objects.
        """
        found = self._manager.find("auto", self._state.problems, lambda line: None)
        if found is None:
            return 0
        self._manager.restore(self._state, *found)
        self.step = int(found[1]["step"])
        return self.step

    def after_step(self, step: int) -> None:
        """Save if it is time to. If some rank was asked to stop, save and exit with code 75.

        This is one small collective. After `muster.record` of the same step it is none, since the
        requests were sent with the loss. Files are written while the training continues.

        Raises:
            SystemExit: a rank was asked to stop; everything is on the disk.
        """
        self._count(step)
        rows, self._answers = self._answers.get(self.step), {}
        if rows is None:
            own = self.requests(self.step)
            row = torch.tensor(own, dtype=torch.float64, device=self._ranks.device)
            rows = self._ranks.all_gather(row)
        last_asked["checkpoints"] = self
        asked = StepRequests(*rows.any(0).tolist())
        if asked.save or asked.stop:
            self._manager.make(self.step, self._state, asked)
        if asked.stop:
            raise SystemExit(STOPPED)

    def requests(self, step: int) -> StepRequests:
        """What this rank requests after `step`."""
        return self._manager.requests(step, stop=stopping())

    def answered(self, step: int, rows: Tensor) -> None:
        """Take `requests` of every rank, (world_size, 3), which came with the loss of `step`."""
        self._answers = {step: rows}

    def save(self, step: int) -> None:
        """Save now, and return when the checkpoint is on the disk."""
        self._count(step)
        self._manager.make(self.step, self._state, StepRequests(stop=True))

    def _count(self, step: int) -> None:
        refuse(whole_number("step", step, 0), where="muster.checkpoints: ")
        self.step = int(step)

    def __exit__(self, *error: object) -> None:
        self._manager.close()


class _State:
    """`HasState` of the checkpoints, for objects with a `state_dict`."""

    def __init__(self, objects: Mapping[str, Stateful]) -> None:
        self._objects = objects

    def own_state(self) -> Mapping[str, Tensor]:
        return {}

    def saved(self, *, keeps: bool) -> tuple[Files, State]:
        states = ((name, one.state_dict()) for name, one in self._objects.items() if keeps)
        files = {name: _copied(state, (name,)) for name, state in states}
        return files, {"objects": list(self._objects)}

    def problems(self, state: State) -> list[str]:
        saved, wanted = set(state.get("objects", ())), set(self._objects)
        if saved == wanted:
            return []
        return [f"it holds {', '.join(sorted(saved))}; here are {', '.join(sorted(wanted))}"]

    def load(self, files: Files, state: State, own: Mapping[str, Tensor]) -> None:
        for name, one in self._objects.items():
            one.load_state_dict(files[name])


def _copied(value: Any, path: tuple[str, ...]) -> Any:
    """`value` with its tensors copied to the CPU.

    Raises:
        UsageError: a part is neither a dense tensor, a number, a string, a list, a tuple nor a
            dict.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested or value.is_meta:
            raise _refused(path, f"a tensor of {value.dtype} ({value.layout}, {value.device})")
        return value.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
    if isinstance(value, NUMBERS):
        return json.loads(json.dumps(value))  # numpy's numbers become Python's
    if isinstance(value, list | tuple):
        found = [_copied(one, (*path, str(at))) for at, one in enumerate(value)]
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, NUMBERS)]:
            raise _refused(path, f"a key that is a {type(other[0]).__name__}")
        return {_copied(key, path): _copied(one, (*path, str(key))) for key, one in value.items()}
    raise _refused(path, f"a {type(value).__name__}")


def _refused(path: tuple[str, ...], what: str) -> UsageError:
    where = "".join([path[0], *(f"[{one}]" for one in path[1:])])
    return UsageError(
        f"muster.checkpoints: the state of {where} holds {what}; only dense tensors of plain "
        "types, numbers, texts, lists, tuples and dicts are saved"
    )


def _interval(every: str | None) -> tuple[float, str] | None:
    if every is None:
        return None
    count, _, unit = str(every).strip().partition(" ")
    try:
        found = (float(count), UNITS[unit.strip()])
    except (ValueError, KeyError):
        found = (0.0, "")
    if not 0 < found[0] < math.inf or (found[1] == "step" and found[0] % 1):
        raise UsageError(f"muster.checkpoints: every is {every!r}; write '100 steps' or '10 min'")
    return found
