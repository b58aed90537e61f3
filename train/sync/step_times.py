"""The seconds of a step's phases on this rank, in any training loop: hooks on its model mark them.

    data       from the end of the last step to a call of the model, and between its passes
    forward    from a call of the model to its result
    backward   from there to the end of the backward pass; computing the loss is part of it
    optimizer  from there to the end of the step
    sync       in all of these: what this rank waited for others, or for what they send

They add up to the step. Where the model is on a GPU, each mark is an event in its stream, and
phases are those of the device. Nothing waits for it until the seconds are read.

The autograd engine reports the end of a backward pass. It calls callbacks in the order in which
they were queued: this timer's, then DDP's, which waits for what it has sent, then this timer's
again.
"""

import weakref
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .ranks import Moment, waits

Mark = Moment | torch.cuda.Event
PHASES = ("data", "forward", "backward", "optimizer", "sync")
# What else may have come before a mark: computing of the phase that is marked next, and waiting.
COMPUTED, WAITED = "computed", "waited"
MOST_MARKS = 100_000  # more than any step has: nobody ends the steps of this model
DEPTH = 4  # of tuples, dicts and objects in which a model may return its results


class StepTimes:
    """The marks of one step."""

    def __init__(self, marks: list[tuple[str, Mark]]) -> None:
        self._marks = marks

    def seconds(self) -> dict[str, float]:
        """Of each phase, and of the whole `step`; on a GPU this waits for the end of the step.

        `sync_in_passes` is the part of `sync` until the end of the last backward pass.
        """
        for _, mark in self._marks:  # they may be in several streams
            if not isinstance(mark, Moment):
                mark.synchronize()
        seconds = dict.fromkeys((*PHASES, "sync_in_passes", "step"), 0.0)
        computed_s = 0.0  # of the phase that is marked next
        for (_, began), (phase, ended) in pairwise(self._marks):
            taken_s = _between(began, ended)
            waited_s = _waited(began, ended)
            if phase in (WAITED, "sync"):
                waited_s = taken_s
            seconds["step"] += taken_s
            seconds["sync"] += waited_s
            computed_s += taken_s - waited_s
            if phase in PHASES:
                seconds[phase] += computed_s
                computed_s = 0.0
                if phase != "optimizer":
                    seconds["sync_in_passes"] = seconds["sync"]
        return seconds


class StepTimer:
    """Hooks on a model, wrapped by DDP or not, that time its steps from now on.

    Passes without gradients count as part of what is around them.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        devices = (
            [] if model is None else [param.device for param in model.parameters() if param.is_cuda]
        )
        self._gpu = devices[0] if devices else None
        self._pass = -1  # autograd's number of the last backward pass
        self._is_in_ddp = False
        self._ended: StepTimes | None = None
        self._stream: torch.cuda.Stream | None = None  # of the last mark
        self.begin()
        if self._gpu is not None:
            waits.timers.add(self)
        if model is not None:
            model.register_forward_pre_hook(self._called)
            # before what others do with the result: FSDP waits at the end of a backward pass, too
            model.register_forward_hook(self._returned, prepend=True)
        if isinstance(model, DistributedDataParallel):
            model.module.register_forward_pre_hook(self._called_by_ddp)

    def __getstate__(self) -> dict[str, Any]:
        """For the hooks of a copied model; nobody asks a copy for its times."""
        return {**vars(self), "_marks": [], "_ended": None, "_gpu": None, "_stream": None}

    def begin(self) -> None:
        """The step begins now: what came since the end of the last one is no part of it."""
        self._marks: list[tuple[str, Mark]] = [("", self._now())]

    def end_step(self) -> StepTimes:
        """The step ends now, and the next one begins."""
        self._mark("optimizer")
        self._ended = StepTimes(self._marks)
        self._marks = self._marks[-1:]
        return self._ended

    def take_step(self) -> StepTimes:
        """The step that has ended since the last call; it ends now if nothing else has ended it."""
        taken = self._ended or self.end_step()
        self._ended = None
        return taken

    def wait(self, *, begins: bool) -> None:
        """`waits` calls this on a GPU, where the stream waits and not this process."""
        # FSDP gathers in streams of its own, beside that of the phases.
        if torch.cuda.current_stream(self._gpu) == self._stream:
            self._mark(COMPUTED if begins else WAITED)

    def _now(self) -> Mark:
        if self._gpu is None:
            return waits.now()
        self._stream = torch.cuda.current_stream(self._gpu)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _mark(self, before: str) -> None:
        """What came since the last mark was `before`."""
        if len(self._marks) == MOST_MARKS:
            self.begin()
        self._marks.append((before, self._now()))

    def _called(self, *_: Any) -> None:
        if _trains():
            self._mark("data")
            self._is_in_ddp = True

    def _called_by_ddp(self, *_: Any) -> None:
        if self._is_in_ddp and _trains():
            self._mark("sync")  # it has made buffers equal
            self._is_in_ddp = False

    def _returned(self, _module: nn.Module, _given: Any, result: Any) -> None:
        if not _trains():
            return
        self._mark("forward")
        self._is_in_ddp = False
        for tensor in _tensors(result):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._reached)

    def _reached(self, _: Tensor) -> None:
        """A backward pass has reached a result of the model."""
        number = torch._C._current_graph_task_id()
        if number != self._pass:
            self._pass = number
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        # not the model's last gradient: the pass may go on, to another model before this one
        self._mark("backward")
        torch.autograd.Variable._execution_engine.queue_callback(self._synced)

    def _synced(self) -> None:
        self._mark("sync")


def _trains() -> bool:
    """Whether a call of the model is a forward pass of a step.

    It is none where a backward pass computes again what it needs, as in checkpointing. In what
    torch compiles, a clock would cut the graph.
    """
    if torch.compiler.is_compiling():
        return False
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _tensors(result: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """The tensors in what a model returns."""
    if isinstance(result, Tensor):
        yield result
    elif depth:
        parts = result
        if isinstance(result, Mapping):
            parts = result.values()
        elif not isinstance(result, list | tuple):
            parts = getattr(result, "__dict__", {}).values()
        for part in parts:
            yield from _tensors(part, depth - 1)


def _between(began: Mark, ended: Mark) -> float:
    if isinstance(began, Moment) and isinstance(ended, Moment):
        return ended.at_s - began.at_s
    assert not isinstance(began, Moment) and not isinstance(ended, Moment)
    milliseconds: float = began.elapsed_time(ended)
    return milliseconds / 1e3


def _waited(began: Mark, ended: Mark) -> float:
    """What `waits` has added up; on a GPU, waiting has marks of its own."""
    if isinstance(began, Moment) and isinstance(ended, Moment):
        return began.waited_until(ended)
    return 0.0


_timers: "weakref.WeakKeyDictionary[nn.Module, StepTimer]" = weakref.WeakKeyDictionary()


def timer_of(model: nn.Module) -> StepTimer:
    """The timer of `model`, created on the first call."""
    if model not in _timers:
        _timers[model] = StepTimer(model)
    return _timers[model]
