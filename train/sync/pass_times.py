"""Time a model's passes on this rank, in any training loop, by this process's clock."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .ranks import Moment, waits


@dataclass
class PassTimes:
    """Seconds of computing since the timer was last read; `waits` has those of waiting."""

    began: Moment | None = None  # when the model was first called
    forward_s: float = 0.0
    backward_s: float = 0.0
    ended: Moment | None = None  # when the last backward pass ended


class PassTimer:
    """Hooks on a model, wrapped by DDP or not, that measure its passes from now on.

    DDP may wait for other ranks in three places: before it calls its model (it makes buffers equal
    there), in a hook, and at the end of the backward pass. All of that is added to `waits`.

    The autograd engine reports the end of a backward pass. It calls callbacks in the order in which
    they were queued: this timer's, then DDP's, which waits for what it has sent, then this timer's
    again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._times = PassTimes()
        self._since = self._ready = waits.now()
        self._asked = False
        inner = getattr(model, "module", None)
        own = inner if isinstance(inner, nn.Module) else model
        if isinstance(model, DistributedDataParallel):
            model.register_forward_pre_hook(self._enter)
        self._entered: Moment | None = None
        own.register_forward_pre_hook(self._begin)
        own.register_forward_hook(self._end)
        for param in own.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._accumulated)

    def _enter(self, *_: Any) -> None:
        self._entered = waits.now()

    def _begin(self, *_: Any) -> None:
        began = self._entered or waits.now()
        if self._entered is not None:
            waits.all_since(self._entered)
            self._entered = None
        self._since = began

    def _end(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._times.began = self._times.began or self._since
            self._times.forward_s += self._lap()
            self._asked = False

    def _lap(self) -> float:
        """The seconds of computing since the last lap."""
        before = self._since
        self._since = waits.now()
        return before.computed_until(self._since)

    def _accumulated(self, _: Tensor) -> None:
        if not self._asked:
            self._asked = True
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        # not its last gradient: the pass may go on, to another model that made what it was given
        self._ready = waits.now()
        torch.autograd.Variable._execution_engine.queue_callback(self._synced)

    def _synced(self) -> None:
        waits.all_since(self._ready)
        self._times.backward_s += self._lap()
        self._times.ended = self._since
        self._asked = False

    def take(self) -> PassTimes:
        """The times since the last call."""
        taken = self._times
        self._times = PassTimes()
        return taken


_timers: "weakref.WeakKeyDictionary[nn.Module, PassTimer]" = weakref.WeakKeyDictionary()


def timer_of(model: nn.Module) -> PassTimer:
    """The timer of `model`, created on the first call."""
    if model not in _timers:
        _timers[model] = PassTimer(model)
    return _timers[model]
