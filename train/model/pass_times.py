"""Time a model's passes on this rank, in any training loop, by this process's clock."""

import time
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class PassTimes:
    """Seconds since the timer was last read."""

    began: float | None = None  # when the model was first called
    forward_s: float = 0.0
    backward_s: float = 0.0  # until all gradients of this rank were ready
    sync_s: float = 0.0  # from then until DDP has made them the mean
    ended: float | None = None  # when the last backward pass ended


class PassTimer:
    """Hooks on a model, wrapped by DDP or not, that measure its passes from now on.

    The autograd engine reports the end of a backward pass. It calls callbacks in the order in which
    they were queued: this timer's, then DDP's, which waits for what it has sent, then this timer's
    again.
    """

    def __init__(self, model: nn.Module) -> None:
        self._times, self._since, self._asked = PassTimes(), 0.0, False
        inner = getattr(model, "module", None)
        own = inner if isinstance(inner, nn.Module) else model
        own.register_forward_pre_hook(self._begin)
        own.register_forward_hook(self._end)
        for param in own.parameters():
            if param.requires_grad:
                param.register_post_accumulate_grad_hook(self._accumulated)

    def _begin(self, *_: Any) -> None:
        self._since = time.perf_counter()

    def _end(self, *_: Any) -> None:
        if torch.is_grad_enabled():
            self._times.began = self._times.began or self._since
            self._times.forward_s += self._lap()
            self._asked = False

    def _lap(self) -> float:
        before, self._since = self._since, time.perf_counter()
        return self._since - before

    def _accumulated(self, _: Tensor) -> None:
        if not self._asked:
            self._asked = True
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        self._times.backward_s += self._lap()
        torch.autograd.Variable._execution_engine.queue_callback(self._synced)

    def _synced(self) -> None:
        self._times.sync_s += self._lap()
        self._times.ended = self._since

    def take(self) -> PassTimes:
        """The times since the last call."""
        taken, self._times = self._times, PassTimes()
        return taken


_timers: "weakref.WeakKeyDictionary[nn.Module, PassTimer]" = weakref.WeakKeyDictionary()


def timer_of(model: nn.Module) -> PassTimer:
    """The timer of `model`, created on the first call."""
    if model not in _timers:
        _timers[model] = PassTimer(model)
    return _timers[model]
