"""Batches on their way to a GPU, and results on their way back, while it computes.

With a GPU, processes load batches in pinned memory. The next step's are fetched when all of a step
has been given to the device, and are copied in a stream of their own. Nothing of that changes which
samples a step has, or how far the training is: the position moves with steps, not with batches.

On CPUs each batch is loaded when it is needed, and is used where it is.
"""

import itertools
import multiprocessing
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader

from configs.settings.train import TrainConfig
from train.tasks.base import Batch

T = TypeVar("T")
LOADERS_OF_A_GPU = 2  # processes of each worker, by default


def processes(config: TrainConfig, device: torch.device) -> int:
    """Those that load the batches of each worker; 0: the worker itself does."""
    if config.data_workers is None:
        return LOADERS_OF_A_GPU if device.type == "cuda" else 0
    return config.data_workers


def loader(
    samples: Any,
    batches: Iterable[list[int]],
    collate: Callable[[Any], Batch],
    config: TrainConfig,
    device: torch.device,
    generator: torch.Generator,
) -> Iterator[Batch]:
    """The `batches` of `samples`, each read and joined by `collate`, in memory of the host.

    Processes draw from generators of their own, which follow from `generator`.
    """
    workers = processes(config, device)
    # forked, so that they share the samples, which need not be picklable
    is_forked = workers > 0 and sys.platform == "linux"
    made: Iterable[Batch] = DataLoader(
        samples,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=workers,
        generator=generator,
        pin_memory=device.type == "cuda",
        multiprocessing_context=multiprocessing.get_context("fork") if is_forked else None,
    )
    return iter(made)


class Feed:
    """The micro-batches of steps on a GPU, one after the other; `fetch` is called before each step.

    It is for batches that other processes load. Where this one does, nothing is done ahead: a
    sample may draw random numbers when it is read, and a checkpoint would hold those of a step that
    it has not reached.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        counts: Iterator[int],
        device: torch.device,
        copied: Callable[[Batch], Batch],
    ) -> None:
        """`counts` are the micro-batches of each step; `copied` copies one to the `device`.

        The copies for the first step begin.
        """
        self._batches = batches
        self._counts = counts
        self._device = device
        self._copied = copied
        self._stream = torch.cuda.Stream(device)
        self._fetched = deque[Batch]()
        self.fetch()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = self._fetched.popleft()
        computing = torch.cuda.current_stream(self._device)
        computing.wait_stream(self._stream)
        for tensor in batch.values():
            tensor.record_stream(computing)  # its memory is free only after it is used there
        return batch

    def fetch(self) -> None:
        """Begin to copy the batches of the next step, if there is one."""
        with torch.cuda.stream(self._stream):
            for batch in itertools.islice(self._batches, next(self._counts, 0)):
                self._fetched.append(self._copied(batch))

    def close(self) -> None:
        """End the processes that load."""
        self._batches = iter(())  # the loader's own ends them when nothing refers to it


def delayed_by_one(items: Iterator[T], device: torch.device) -> Iterator[T]:
    """With a GPU each of `items` when the next one has begun, which the device computes then."""
    if device.type == "cpu":
        yield from items
        return
    waiting = deque[T]()
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
