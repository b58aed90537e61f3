"""When a checkpoint is due, and what is in it.

Every rank has a manager and calls the same methods in the same order. One rank of each file system
writes. These methods are collective, so every rank must call them: `make` (unless all agreed to
skip it), `resume`, `require_own_folder`, `require`, and `_save` inside them. The others
concern this rank alone: `requests`, `is_best`, `is_due_at_end`, `close`.

    after a step     requests()         what this rank wants: stop, save, skip
                     StepRequests       what at least one rank wants, by the step's own collective
                     make()             skip it (a rank is still writing the last), or:
                       _save            all wait until no rank writes; collectives that gather
                                        what ranks hold; then copies
                       Writer.start     a thread writes them to disk; training goes on

No rank decides alone: rank 0 decides what is due, and all ranks do what one of them requests.
"""

import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from muster.errors import UsageError, refuse

from ..distributed import agreement
from ..distributed.agreement import DISK_PATIENCE_S
from ..records.schema import CheckpointRecord
from ..sync.ranks import Ranks
from . import storage
from .object_states import ObjectStates
from .storage import IntactCheckpoint, SavedState
from .transfer import transferred
from .writer import NotWritten, TrainedButNotSaved, Writer, warn

AUTO = "auto"  # for --resume: the newest checkpoint, if there is one
RESUME_OR_MOVE = (
    "to continue from them, add --resume auto; otherwise choose another --checkpoint-dir"
)
SLOW_S = 1.0  # for a write; if it is faster, a skipped checkpoint costs hardly any training


class StepRequests(NamedTuple):
    """What one rank, or at least one of all ranks, requests after a step."""

    stop: bool = False  # stop the training
    save: bool = False  # save: a checkpoint is due
    skip: bool = False  # none now, unless asked to stop: this rank is still writing the last one


class CheckpointManager:
    """Makes checkpoints of a training. Every rank makes the same calls, and some of them write."""

    def __init__(
        self,
        folder: Path,
        ranks: Ranks,
        *,
        firsts: Sequence[int] | None = None,
        note: Callable[[CheckpointRecord], None],
        interval: tuple[float, str] | None = None,
        keep_last: int = 2,
        keep_best: str | None = None,
        run_id: str | None = None,
    ) -> None:
        """`firsts`: for each rank, the first rank with the same file system, which writes there.

        By default all share one. `interval` is (3, "step"), (1, "epoch") or (10, "min"); None: only
        when asked to stop. `keep_best` is "METRIC:min" or "METRIC:max". `run_id` is stored, so that
        a run, or a launcher that restarts it, can tell its checkpoints from those of other runs.
        """
        self.folder = folder
        self._ranks = ranks
        self._firsts = firsts or [0] * ranks.world_size
        self.writes = ranks.rank in self._firsts
        self._metric, _, direction = (keep_best or "").rpartition(":")
        self._sign = -1 if direction == "min" else 1
        self._every, self._unit = interval or (0.0, "never")
        self.is_due_after_epoch = self._unit == "epoch"  # at the end of every epoch
        self._writer = Writer(folder, keep_last=keep_last, rank=ranks.rank, note=note)
        self._saved = -1  # the step of the last checkpoint
        self._due_since = time.monotonic()  # when the last one was made or skipped
        self._is_reported = False  # whether a slow disk has been reported
        self._best: float | None = None
        self._best_step: int | None = None
        self._best_by = keep_best
        self._run_id = run_id
        # torchrun gives a run that it restarts no name by which to tell it from others
        self._is_restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"

    def requests(self, step: int, *, stop: bool) -> StepRequests:
        """What this rank requests after `step`; `stop`: it was asked to stop."""
        is_due = False
        if self._ranks.rank == 0:  # which decides for all
            waited_s = time.monotonic() - self._due_since
            in_steps = self._unit == "step" and step % int(self._every) == 0
            is_due = in_steps or (self._unit == "min" and waited_s >= 60 * self._every)
        return StepRequests(stop, is_due, self._writer.is_busy)

    def is_due_at_end(self, step: int) -> bool:
        """Whether a checkpoint is due at the end of the run, so that steps can be added later."""
        return self._unit != "never" and self._saved != step

    def is_best(self, metrics: dict[str, float], step: int) -> bool:
        """Whether --keep-best applies to `step`; `metrics` are the same on all ranks.

        Raises:
            UsageError: --keep-best names none of the metrics.
        """
        name = self._metric
        if not name or not metrics:
            return False
        if name not in metrics:
            raise UsageError(
                f"--keep-best {name}: no such metric; the evaluation has "
                f"{', '.join(sorted(metrics))}"
            )
        if not math.isfinite(metrics[name]):  # NaN is neither better nor worse than any number
            self._tell(
                f"its value after step {step} is {metrics[name]}, which never counts as the best"
            )
            return False
        if self._best is not None and self._sign * metrics[name] <= self._sign * self._best:
            return False
        self._best = metrics[name]
        self._best_step = step
        return True

    def best_step(self) -> int:
        """The step of the best checkpoint by --keep-best, or 0 if there is none yet."""
        return self._best_step or 0

    def tell_if_none_is_best(self) -> None:
        """Warn at the end of a training if --keep-best has kept nothing."""
        if self._metric and self._best_step is None:
            self._tell(
                "no checkpoint was kept, because no evaluation after an epoch gave a finite value"
            )

    def _tell(self, text: str) -> None:
        if self._ranks.rank == 0:
            warn(f"--keep-best {self._metric}: {text}")

    def make(self, step: int, objects: ObjectStates, requests: StepRequests) -> None:
        """Make a checkpoint, or skip it if a rank is still writing the last one.

        If the training is to stop, it waits until the last one and this one are on the disk.

        Raises:
            NotWritten: the training is to stop, and no disk has the checkpoint; on every rank.
        """
        writer = self._writer
        if requests.skip and not requests.stop:
            self._due_since = time.monotonic()
            if writer.is_busy and writer.busy_s >= SLOW_S and not self._is_reported:
                self._is_reported = True
                warn(f"step {step}: no checkpoint, because the disk is slow: {writer.progress}")
            return
        if requests.stop:
            self.save(step, objects)
        else:
            self._save(step, objects)

    def save(self, step: int, objects: ObjectStates) -> None:
        """Make a checkpoint; return when it and the last one are on the disk.

        Raises:
            NotWritten: no disk has it; on every rank.
        """
        self._save(step, objects)
        if problems := self._missing():
            raise NotWritten("\n".join(problems))

    def _save(self, step: int, objects: ObjectStates) -> None:
        """Make a checkpoint as soon as every writing rank has the last one on its disk.

        The next step waits for the copies in memory, not for the disk.
        """
        started = time.perf_counter()
        self._writer.wait()
        agreement.wait_for_all(self._ranks.world_size, DISK_PATIENCE_S)
        # Collectives come first; afterwards only some ranks write.
        files, saved = objects.saved(step)
        self._saved = step
        self._due_since = time.monotonic()
        if not self.writes:
            return
        saved = replace(
            saved, best=self._best, best_step=self._best_step, best_by=self._best_by,
            run_id=self._run_id,
        )  # fmt: skip
        self._writer.start(files, saved, time.perf_counter() - started)

    def require(self) -> None:
        """At the end of a training, require that a disk has its last checkpoint and the best one.

        Warnings about earlier ones that failed have already been printed.

        Raises:
            TrainedButNotSaved: on every rank, with the host, folder and reason of each disk.
        """
        if problems := self._missing(self._best_step):
            lines = (f"the training is complete, but {line}" for line in problems)
            raise TrainedButNotSaved("\n".join(lines))

    def _missing(self, *steps: int | None) -> list[str]:
        """Why no disk has the last checkpoint and those of `steps`; empty if one has them."""
        problems = self._writer.problems(*steps) if self.writes else None
        agreement.wait_for_all(self._ranks.world_size, DISK_PATIENCE_S)
        of_ranks = agreement.gather(self._ranks.world_size, problems)
        of_disks = [lines for lines in of_ranks if lines is not None]
        return [line for lines in of_disks for line in lines] if all(of_disks) else []

    def problems(self) -> list[str]:
        """Why the last checkpoint is not on this rank's disk; waits for it."""
        return self._writer.problems()

    def close(self) -> None:
        """Wait for the running write, whether or not it succeeds."""
        self._writer.wait()

    def resume(
        self,
        resume: str,
        objects: ObjectStates,
        tell: Callable[[str], None],
        tell_damaged: Callable[[str], None] | None = None,
        *,
        asked: str,
        without: Collection[str] = (),
    ) -> SavedState | None:
        """Make `objects` continue from the checkpoint that `resume`, a folder or auto, refers to.

        It is the newest intact one on any file system, the same on every rank; None if auto finds
        none. Damaged checkpoints are named and skipped. Every rank reads the files itself. They are
        sent only to ranks that do not see them. Objects named in `without` stay as they are. Later
        checkpoints in this folder are set aside before the first new one is written. Errors begin
        with `asked`, the flag or function with which the user asked for this. Collective.

        Raises:
            UsageError: there is none, or `objects` cannot continue from it; all reasons are listed.
        """
        world_size = self._ranks.world_size
        folder = self.folder if resume == AUTO else Path(resume).expanduser()
        local, notes = storage.newest_intact(folder)
        step, sums, is_here = -1, dict[str, str](), False
        if local is not None:
            step, sums = local.saved.step, local.sums
            is_here = local.path.parent.resolve() == self.folder.resolve()
        agreement.wait_for_all(world_size, DISK_PATIENCE_S)  # disks differ in speed
        views = agreement.gather(world_size, (step, sums, is_here, notes))
        steps, sums_of, are_here, notes_of = zip(*views, strict=True)
        for note in dict.fromkeys(note for notes in notes_of for note in notes):
            (tell_damaged or tell)(note)
        if max(steps) < 0:
            damaged = any(notes_of)
            if resume == AUTO and not damaged:
                tell(f"no checkpoint in {folder} yet: starting from the beginning")
                return None
            raise UsageError(f"{asked}: no {'intact ' if damaged else ''}checkpoint in {folder}")
        source = steps.index(max(steps))
        is_here = are_here[source]
        # a rank may see another checkpoint of that step
        lacking = [rank for rank, sums in enumerate(sums_of) if sums != sums_of[source]]
        if self._ranks.rank in lacking:
            local = None
        self._refuse_misfit(f"{asked}: ", objects, local)
        if not is_here:
            self.require_own_folder(f"{asked}: ", RESUME_OR_MOVE)
        with ExitStack() as until_all_have_read:
            if lacking:
                transfer = transferred(
                    self._ranks, local, self.folder, firsts=self._firsts,
                    source=source, lacking=lacking,
                )  # fmt: skip
                local = until_all_have_read.enter_context(transfer) or local
            assert local is not None  # all ranks see the same one
            saved = local.saved
            tell(f"resuming from step {saved.step} ({folder})")
            try:
                objects.load(local.files, saved, without)
            except UsageError as error:
                raise UsageError(f"{asked}: step {saved.step} in {folder}: {error}") from error
            agreement.wait_for_all(world_size, DISK_PATIENCE_S)
        self._writer.goes_on_from = saved.step if is_here else -1
        if saved.best is not None:
            self._best = saved.best
            self._best_step = saved.best_step
            self._best_by = self._best_by or saved.best_by
        self._saved = saved.step
        return saved

    def require_own_folder(self, where: str, remedies: str) -> None:
        """Refuse another run's checkpoints in the folder of a run that does not continue from them.

        Collective.

        Raises:
            UsageError: there are some on this rank's disk; on other ranks PeerFailed.
        """

        def check() -> None:
            for checkpoint in storage.list_checkpoints(self.folder) if self.writes else ():
                if not self._is_own(storage.run_of(checkpoint)):
                    raise UsageError(
                        f"{where}{self.folder} contains checkpoints from another run, for "
                        f"example from step {checkpoint.step}"
                        f"\ntip: {remedies}"
                    )

        agreement.gather_results(self._ranks.world_size, check, DISK_PATIENCE_S)

    def _is_own(self, run_id: str | None) -> bool:
        """Whether a checkpoint is of this run; if torchrun has restarted it, any counts."""
        return self._is_restart or (run_id is not None and run_id == self._run_id)

    def _refuse_misfit(
        self, where: str, objects: ObjectStates, intact: IntactCheckpoint | None
    ) -> None:
        """Refuse, on every rank, a checkpoint that does not fit on a rank that sees it."""

        def problems() -> list[str]:
            if intact is None:
                return []
            saved = intact.saved
            is_own = self._is_own(saved.run_id)
            return [
                *objects.problems(saved, intact.files, is_own=is_own),
                *self._other_best(saved),
            ]

        of_ranks = agreement.gather_results(self._ranks.world_size, problems, DISK_PATIENCE_S)
        refuse(dict.fromkeys(line for lines in of_ranks for line in lines), where=where)

    def _other_best(self, saved: SavedState) -> Iterator[str]:
        was = saved.best_by
        if saved.best is not None and self._best_by not in (None, was):
            yield (
                f"--keep-best is {self._best_by}, but the best checkpoint so far, of step "
                f"{saved.best_step}, was chosen by {was}"
                f"\ntip: use --keep-best {was}, or leave it out"
            )
