"""Time the phases of a step on this rank, in any training loop, with hooks on its model.

    data       from the end of the last step to a call of the model, and between its passes
    forward    from a call of the model to its result
    backward   from there to the end of the backward pass; computing the loss is part of it
    optimizer  from there to the end of the step
    sync       within all of these: when this rank waited for others, or for data from them

The phases add up to the step. A span begins where the last one ended, and belongs to one phase. If
the model is on a GPU, both ends are events in its stream, so that the device's phases are timed.
Nothing waits for the device until the seconds are read.
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
MOST_SPANS = 100_000  # more than any step has: if reached, nothing ends the model's steps
DEPTH = 4  # of the tuples, dicts and objects in which a model may return its results


class Span(NamedTuple):
    """A part of a step that belongs to one phase."""

    phase: str
    began: Mark
    ended: Mark
    waits: Sequence[tuple[Mark, Mark]]  # within it, on a GPU; on CPUs the marks have the seconds

    def marks(self) -> Iterator[Mark]:
        return chain((self.began, self.ended), *self.waits)

    def seconds(self) -> tuple[float, float]:
        """Return all seconds, and the seconds of them in which this rank waited for others."""
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
        """Return the seconds of each phase and of the `step`; on a GPU, wait until it has ended.

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

    Passes without gradients count as part of the phase around them.
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
            # before other hooks on the result: FSDP also waits at the end of a backward pass
            model.register_forward_hook(self._returned, prepend=True)
        if isinstance(model, DistributedDataParallel):
            model.module.register_forward_pre_hook(self._called_by_ddp)

    def __getstate__(self) -> dict[str, Any]:
        """Return a state for the hooks of a copied model, whose times nothing reads."""
        nothing: dict[str, Any] = {**dict.fromkeys(("_times", "_gpu", "_stream")), "_waits": []}
        return {**vars(self), "_ended": waits.now(), "_spans": [], **nothing}

    def begin(self) -> None:
        """Begin the step now: the time since the end of the last one is not part of it."""
        self._ended = self._now()  # when the last span ended
        self._spans: list[Span] = []
        self._waits: list[tuple[Mark, Mark]] = []  # since then, on a GPU

    def end_step(self) -> StepTimes:
        """End the step now, begin the next one, and return the times of the step."""
        self._end_span("optimizer")
        self._times, self._spans = StepTimes(self._spans), []
        return self._times

    def take_step(self) -> StepTimes:
        """Return the step that has ended since the last call; end it now if nothing else has."""
        times = self._times or self.end_step()
        self._times = None
        return times

    def begin_wait(self) -> Mark | None:
        """Mark the start of a wait; called by `waits` on a GPU, where the stream waits."""
        # FSDP gathers in its own streams, beside the stream of the phases.
        return self._now() if torch.cuda.current_stream(self._gpu) == self._stream else None

    def end_wait(self, began: Mark | None) -> None:
        """End a wait now; `began` is the mark that `begin_wait` returned for it."""
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
        """End a span now: the time since the last span belongs to `phase`."""
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
            self._end_span("sync")  # DDP has made buffers equal
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
        """Called when a backward pass has reached a result of the model.

        The autograd engine reports the end of the pass, which need not be the model's last
        gradient, since the pass may go on to another model before this one. The engine calls
        callbacks in the order in which they were queued: `computed`, then DDP's, which waits for
        what it has sent, then the callback that `computed` queues.
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

    It is not if a backward pass recomputes what it needs, as in checkpointing. In code that torch
    compiles, reading a clock would break the graph.
    """
    if torch.compiler.is_compiling():
        return False
    return torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1


def _tensors(result: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """Yield the tensors in the result of a model."""
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
