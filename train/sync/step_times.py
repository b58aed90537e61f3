"""The seconds of a step's phases on this rank, in any training loop: hooks on its model mark them.

    data       from the end of the last step to a call of the model, and between its passes
    forward    from a call of the model to its result
    backward   from there to the end of the backward pass; computing the loss is part of it
    optimizer  from there to the end of the step
    sync       in all of these: what this rank waited for others, or for what they send

They add up to the step. A span reaches from the end of the last one to here, and belongs to one
phase. Where the model is on a GPU, both ends are events in its stream, and phases are those of the
device. Nothing waits for it until the seconds are read.
"""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .ranks import Moment, waits

Mark = Moment | torch.cuda.Event
PHASES = ("data", "forward", "backward", "optimizer", "sync")
MOST_SPANS = 100_000  # more than any step has: nobody ends the steps of this model
DEPTH = 4  # of tuples, dicts and objects in which a model may return its results


class Span(NamedTuple):
    """A part of a step that belongs to one phase."""

    phase: str
    began: Mark
    ended: Mark
    waits: Sequence[tuple[Mark, Mark]]  # in it, on a GPU; on CPUs the marks have the seconds

    def marks(self) -> Iterator[Mark]:
        return chain((self.began, self.ended), *self.waits)

    def seconds(self) -> tuple[float, float]:
        """All, and those of them in which this rank waited for others."""
        taken_s = _between(self.began, self.ended)
        if self.phase == "sync":
            return taken_s, taken_s
        if isinstance(self.began, Moment) and isinstance(self.ended, Moment):
            return taken_s, self.began.waited_until(self.ended)
        return taken_s, sum(_between(*wait) for wait in self.waits)


class StepTimes:
    """The spans of one step."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans

    def seconds(self) -> dict[str, float]:
        """Of each phase, and of the whole `step`; on a GPU this waits for the end of the step.

        `sync_in_passes` is the part of `sync` until the end of the last backward pass.
        """
        for mark in {mark for span in self._spans for mark in span.marks()}:
            if not isinstance(mark, Moment):
                mark.synchronize()  # each may be in another stream
        seconds = dict.fromkeys((*PHASES, "sync_in_passes", "step"), 0.0)
        for span in self._spans:
            taken_s, waited_s = span.seconds()
            seconds["step"] += taken_s
            seconds["sync"] += waited_s
            if span.phase != "sync":
                seconds[span.phase] += taken_s - waited_s
            if span.phase != "optimizer":
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
        self._times: StepTimes | None = None  # of the last step
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
        nothing: dict[str, Any] = {**dict.fromkeys(("_times", "_gpu", "_stream")), "_waits": []}
        return {**vars(self), "_ended": waits.now(), "_spans": [], **nothing}

    def begin(self) -> None:
        """The step begins now: what came since the end of the last one is no part of it."""
        self._ended = self._now()  # the last span
        self._spans: list[Span] = []
        self._waits: list[tuple[Mark, Mark]] = []  # since then, on a GPU

    def end_step(self) -> StepTimes:
        """The step ends now, and the next one begins."""
        self._end_span("optimizer")
        self._times, self._spans = StepTimes(self._spans), []
        return self._times

    def take_step(self) -> StepTimes:
        """The step that has ended since the last call; it ends now if nothing else has ended it."""
        times = self._times or self.end_step()
        self._times = None
        return times

    def begin_wait(self) -> Mark | None:
        """`waits` calls this on a GPU, where the stream waits and not this process."""
        # FSDP gathers in streams of its own, beside that of the phases.
        return self._now() if torch.cuda.current_stream(self._gpu) == self._stream else None

    def end_wait(self, began: Mark | None) -> None:
        """What `begin_wait` has returned began the wait that ends now."""
        if began is not None and len(self._waits) < MOST_SPANS:
            self._waits.append((began, self._now()))

    def _now(self) -> Mark:
        if self._gpu is None:
            return waits.now()
        self._stream = torch.cuda.current_stream(self._gpu)
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def _end_span(self, phase: str) -> None:
        """What came since the last span was `phase`."""
        if len(self._spans) == MOST_SPANS:
            self.begin()
        began, self._ended = self._ended, self._now()
        self._spans.append(Span(phase, began, self._ended, self._waits))
        self._waits = []

    def _called(self, *_: Any) -> None:
        if _trains():
            self._end_span("data")
            self._is_in_ddp = True

    def _called_by_ddp(self, *_: Any) -> None:
        if self._is_in_ddp and _trains():
            self._end_span("sync")  # it has made buffers equal
            self._is_in_ddp = False

    def _returned(self, _module: nn.Module, _given: Any, result: Any) -> None:
        if not _trains():
            return
        self._end_span("forward")
        self._is_in_ddp = False
        for tensor in _tensors(result):
            if tensor.grad_fn is not None:
                tensor.register_hook(self._reached)

    def _reached(self, _: Tensor) -> None:
        """A backward pass has reached a result of the model.

        The autograd engine reports its end: the last gradient of the model need not be the end,
        since the pass may go on to another model before this one. It calls callbacks in the order
        in which they were queued: this one, then DDP's, which waits for what it has sent, then the
        one that is queued last.
        """
        number = torch._C._current_graph_task_id()
        if number == self._pass:
            return
        self._pass = number
        queue = torch.autograd.Variable._execution_engine.queue_callback

        def computed() -> None:
            self._end_span("backward")
            queue(lambda: self._end_span("sync"))

        queue(computed)


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


_timers: "weakref.WeakKeyDictionary[nn.Module, StepTimer]" = weakref.WeakKeyDictionary()


def timer_of(model: nn.Module) -> StepTimer:
    """The timer of `model`, created on the first call."""
    if model not in _timers:
        _timers[model] = StepTimer(model)
    return _timers[model]
