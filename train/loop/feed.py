"""Batches on their way to a GPU, and results on their way back, while it computes.

With a GPU, processes load batches into pinned memory. The next step's batches are fetched when all
of a step has been given to the device, and are copied in their own stream. None of this changes
which samples a step has, or the position of the training, which moves with steps, not with batches.

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
LOADERS_OF_A_GPU = 2  # loading processes of each worker, by default


def processes(config: TrainConfig, device: torch.device) -> int:
    """Return the number of processes that load batches for each worker; 0: it loads them itself."""
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
    """Load the `batches` of `samples`, each joined by `collate`, into the host's memory.

    Processes draw from their own generators, which are seeded from `generator`.
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

    It is for batches that other processes load. If this process loads them, nothing is read ahead:
    reading a sample may draw random numbers, and a checkpoint would then contain the generators'
    state of a step that it has not reached.
    """

    def __init__(
        self,
        batches: Iterator[Batch],
        counts: Iterator[int],
        device: torch.device,
        copied: Callable[[Batch], Batch],
    ) -> None:
        """`counts` are the steps' numbers of micro-batches; `copied` copies a batch to `device`.

        Copying for the first step begins here.
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
        self._batches = iter(())  # the loader's iterator ends them when nothing refers to it


def delayed_by_one(items: Iterator[T], device: torch.device) -> Iterator[T]:
    """With a GPU, yield each of `items` when the next one has begun, which keeps the GPU busy."""
    if device.type == "cpu":
        yield from items
        return
    waiting = deque[T]()
    for item in items:
        waiting.append(item)
        if len(waiting) > 1:
            yield waiting.popleft()
    yield from waiting
