"""Checkpoints of any program: any object with a `state_dict` is saved and resumed bit for bit.

checkpoints/ defines what is saved of them, and how.
"""

import math
import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from muster.arguments import methods, whole_number
from muster.errors import UsageError, refuse
from muster.orderly_stop import StoppedCleanly, request, stopping

from ..batches.steps import Steps
from ..checkpoints.exchange import first_on_disk
from ..checkpoints.manager import AUTO, CheckpointManager, StepRequests
from ..checkpoints.object_states import GENERATORS, Collected, ObjectStates, Stateful
from ..checkpoints.writer import NotWritten, warn
from ..distributed.agreement import gather
from ..sync.ranks import Ranks, current_ranks
from .exchange import program_requests
from .recorder import write_record

RESUME_OR_CHOOSE = (
    "to continue from them, call resume() before the first step; otherwise choose another folder"
)
UNITS = {"step": "step", "steps": "step", "min": "min"}
_folders = set[Path]()  # of this process's checkpoints


def checkpoints(
    folder: str | Path | None = None,
    *,
    every: str | None = None,
    keep_last: int = 2,
    name: str | None = None,
    by_rank: Mapping[str, Stateful] | None = None,
    **objects: Stateful | Collected,
) -> "Checkpoints":
    """Save and resume `objects`; every rank must call this, and its methods, at the same points.

    One rank of each file system writes. What differs by rank is saved for each rank: random
    generators, errors of compression, and the objects in `by_rank`. Any other object that differs
    is also saved for each rank, with a warning. To detect this, each rank reads its states once per
    checkpoint, and the ranks exchange checksums. A step waits for the checksums and for a copy in
    CPU memory, not for the disk. With another number of ranks, all get rank 0's state.

    The checkpoints in a folder form one chain, whichever runs wrote them. A run that does not call
    `resume` may not use the folder of another run. If it resumes, later checkpoints in the folder
    are moved to `set_aside/`.

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
        name: name of a folder in `folder`, for each of several trainings in one program.
        by_rank: objects whose states differ by rank, such as {"loader": loader}.
        objects: each with a name, such as model=model, optimizer=optimizer, steps=steps. A model
            may be the result of `muster.sync`, or the model in it.

    Raises:
        UsageError: no folder is known, an argument is invalid, or an earlier call has taken the
            default folder.
    """
    by_rank = by_rank or {}
    refuse(_problems(keep_last, name, objects, by_rank), where="muster.checkpoints: ")
    if not (given := folder or os.environ.get("MUSTER_CHECKPOINTS")):
        raise UsageError(
            "muster.checkpoints: MUSTER_CHECKPOINTS is not set"
            "\ntip: pass a folder, call muster.init() first, or start the program with one of "
            "Muster's launchers"
        )
    interval, ranks = _interval(every), current_ranks()
    path = Path(given, name or "")
    is_used = path.absolute() in _folders
    if is_used and not folder:
        raise UsageError(
            f"muster.checkpoints: an earlier call in this program already uses {path}"
            "\ntip: give each training its own name: name='fold2'"
        )
    firsts = first_on_disk(path, ranks, socket.gethostname())
    run_dir = os.environ.get("MUSTER_RUN_DIR")
    manager = CheckpointManager(
        path, ranks, firsts=firsts, note=write_record, interval=interval, keep_last=keep_last,
        run_id=run_dir and Path(run_dir).name,
    )  # fmt: skip
    _folders.add(path.absolute())
    return Checkpoints(manager, ranks, objects, by_rank=by_rank, is_used=is_used)


def _problems(
    keep_last: int,
    name: object,
    objects: Mapping[str, Stateful | Collected],
    by_rank: Any,
) -> Iterator[str]:
    yield from whole_number("keep_last", keep_last, 1)
    if name is not None and not (isinstance(name, str) and re.fullmatch(r"\w[\w.-]*", name)):
        yield f"name is {name!r}; it names a folder, so use only letters, digits, _, - and ."
    if not isinstance(by_rank, Mapping):
        yield (
            f"by_rank is of type {type(by_rank).__name__}"
            '\ntip: pass a dict: by_rank={"loader": loader}'
        )
        by_rank = {}
    if not objects and not by_rank:
        yield "there is nothing to save\ntip: pass objects by name: model=model"
    for name in objects.keys() & by_rank.keys():
        yield f"{name} was passed twice\ntip: pass it only in by_rank"
    for name, instance in {**objects, **{str(key): item for key, item in by_rank.items()}}.items():
        if name == GENERATORS or not name.isidentifier():
            yield f"an object cannot be named {name!r}\ntip: use another name: model=model"
        if not isinstance(instance, Collected):
            yield from methods(name, instance, "state_dict", "load_state_dict")


class Checkpoints(AbstractContextManager["Checkpoints"]):
    """See `checkpoints`.

    As a context manager it waits at its end until the last checkpoint is on the disk.

    Raises:
        MusterError: at the end of the context, if one was not written: host, folder and reason.
    """

    def __init__(
        self,
        manager: CheckpointManager,
        ranks: Ranks,
        objects: Mapping[str, Stateful | Collected],
        *,
        by_rank: Mapping[str, Stateful] | None = None,
        is_used: bool = False,
    ) -> None:
        """`is_used`: whether an earlier call of this program has its checkpoints in the folder."""
        self._manager, self._ranks, self._is_used = manager, ranks, is_used
        self._state = ObjectStates(objects, ranks, writes=manager.writes, by_rank=by_rank)
        self._steps = [instance for instance in objects.values() if isinstance(instance, Steps)]
        self._is_begun = False  # whether the program has resumed, or made its first step
        self.folder = manager.folder
        self.step = 0  # the last step given to `after_step`, or resumed from

    def resume(self) -> int:
        """Resume from the newest intact checkpoint; return its step, or 0 if there is none yet.

        Every rank must call it. Damaged checkpoints are reported and skipped.

        Raises:
            UsageError: it is a checkpoint of other objects, or all are damaged.
        """
        is_found = self.resume_from(AUTO, lambda line: None, self._warn, asked="muster.checkpoints")
        if is_found and self._is_used:
            self._warn(
                f"resuming from step {self.step} in {self.folder}, which an earlier call in this "
                "program already uses; give another training its own name: name='fold2'"
            )
        return self.step

    def resume_from(
        self,
        resume: str,
        tell: Callable[[str], None],
        tell_damaged: Callable[[str], None] | None = None,
        *,
        asked: str,
        without: Collection[str] = (),
    ) -> bool:
        """Resume from the newest intact checkpoint; return whether there is one. Collective.

        `resume` is the folder to resume from, or "auto": this object's own folder, which may be
        empty. Objects named in `without` stay as they are. A refusal begins with `asked`.

        Raises:
            UsageError: it is a checkpoint of other objects, or the folder has none.
        """
        self._is_begun = True
        saved = self._manager.resume(
            resume, self._state, tell, tell_damaged, asked=asked, without=without
        )
        if saved is None:
            return False
        if saved.by_rank and saved.world_size != self._ranks.world_size:
            self._warn(
                f"{', '.join(saved.by_rank)} had a different state on each of {saved.world_size} "
                f"ranks; with {self._ranks.world_size} ranks, all of them resume from the same "
                "state"
            )
        self.step = saved.step
        return True

    def _warn(self, text: str) -> None:
        if self._ranks.rank == 0:
            warn(f"muster.checkpoints: {text}")

    def after_step(self, step: int) -> None:
        """Save if it is due. If some rank was asked to stop, save and exit with code 75.

        Every rank must call it after each step. It costs one small collective, or none after
        `muster.record` of the same step, which sends the requests with the loss. Files are written
        while the training continues.

        Raises:
            SystemExit: a rank was asked to stop; everything is on the disk.
            UsageError: the ranks pass different steps; raised on every rank.
            NotWritten: a checkpoint before the stop could not be written.
        """
        self._count(step)
        self.make(self.step, program_requests.after(self._ranks, self.step, self))

    def make(self, step: int, asked: StepRequests) -> None:
        """Do what some rank has `asked` for after `step`: save, or save and end the training.

        Raises:
            StoppedCleanly: a rank was asked to stop; everything is on the disk.
        """
        if asked.save or asked.stop:
            self._manager.make(step, self._state, asked)
        if asked.stop:
            # the reason of whichever rank was asked; a launcher reads it
            why = next(filter(None, gather(self._ranks.world_size, request.why)))
            raise StoppedCleanly(step, why, self.folder)

    def requests(self, step: int) -> StepRequests:
        """Return what this rank requests after `step`."""
        return self._manager.requests(step, stop=stopping())

    def save(self, step: int) -> None:
        """Save now, and return when the checkpoint is on the disk; every rank must call it.

        Raises:
            UsageError: the ranks pass different steps; raised on every rank.
            NotWritten: it could not be written.
        """
        self._count(step)
        program_requests.after(self._ranks, self.step, self)  # so all ranks are at this step
        self._manager.save(self.step, self._state)

    def _count(self, step: int) -> None:
        refuse(whole_number("step", step, 0), where="muster.checkpoints: ")
        if not self._is_begun:
            self._is_begun = True
            self._manager.require_own_folder("muster.checkpoints: ", RESUME_OR_CHOOSE)
        if step < self.step:  # it would be pruned as the older one
            raise UsageError(
                f"muster.checkpoints: step is {step}, but step {self.step} was already reached"
                "\ntip: count steps across all epochs, starting from the number that resume() "
                "returns"
            )
        self.step = int(step)
        for steps in self._steps:
            steps.require_handed_out(self.step)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (problems := self._manager.problems()) and error is None:
            raise NotWritten("\n".join(problems))


def _interval(every: str | None) -> tuple[float, str] | None:
    if every is None:
        return None
    count, _, unit = str(every).strip().partition(" ")
    try:
        interval = (float(count), UNITS[unit.strip()])
    except (ValueError, KeyError):
        interval = (0.0, "")
    if not 0 < interval[0] < math.inf or (interval[1] == "step" and interval[0] % 1):
        raise UsageError(
            f"muster.checkpoints: every is {every!r}\ntip: write '100 steps' or '10 min'"
        )
    return interval
