"""Samples lie ready in HDF5 files of NVIDIA's layout, and are read one by one as they are used."""

import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py

from muster.errors import UsageError
from train.tasks.pretraining.segment_pairs import PairSample

PER_TOKEN = ("input_ids", "input_mask", "segment_ids")  # (n, width)
PER_GUESS = ("masked_lm_positions", "masked_lm_ids")  # (n, most guesses), zeros behind the last
LABELS = "next_sentence_labels"  # (n,), 1 where the second segment is from elsewhere
DATASETS = (*PER_TOKEN, *PER_GUESS, LABELS)
# Compressed chunks are unpacked once for all of their rows. So much is kept per process, over all
# shards, and at least what HDF5 itself would keep of each dataset.
CACHE_BYTES, LEAST_CACHE_BYTES = 512 * 2**20, 2**20


class Shards:
    """The rows of all `paths`, in order.

    Raises:
        UsageError: a file is no HDF5, or has not the datasets; on reading, a row that does not
            fit the model's `vocabulary_size`.
    """

    def __init__(self, paths: list[Path], vocabulary_size: int) -> None:
        self.paths, self._vocabulary_size = paths, vocabulary_size
        shapes = [_shape(path) for path in paths]
        self._ends = list(accumulate(rows for rows, _ in shapes))
        self.width = max(width for _, width in shapes)
        self._owner, self._open = -1, dict[int, dict[str, Any]]()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        number = bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        shard = self._opened(number)
        length = int(shard["input_mask"][row].sum())
        tokens, segments = (shard[name][row, :length].tolist() for name in PER_TOKEN[::2])
        positions, targets = (shard[name][row].tolist() for name in PER_GUESS)
        guesses = positions.index(0) if 0 in positions else len(positions)  # 0 is [CLS]
        sample = PairSample(
            tokens, segments, positions[:guesses], targets[:guesses], shard[LABELS][row].item()
        )
        self._check(sample, f"{self.paths[number]}: row {row}")
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_owner": -1, "_open": {}}  # open files stay behind

    def _opened(self, number: int) -> dict[str, Any]:
        """The datasets of a file, opened by this process: HDF5's handles do not survive a fork."""
        if self._owner != os.getpid():
            self._owner, self._open = os.getpid(), {}
        if number not in self._open:
            path = self.paths[number]
            share = CACHE_BYTES // (len(self.paths) * len(DATASETS))
            cache_bytes = max(LEAST_CACHE_BYTES, share)
            file = h5py.File(path, "r", rdcc_nbytes=cache_bytes, locking=False)
            # A dataset's cache lives as long as the dataset is kept: forty times faster.
            self._open[number] = {name: file[name] for name in DATASETS}
        return self._open[number]

    def _check(self, sample: PairSample, where: str) -> None:
        largest = max(max(sample.tokens, default=0), max(sample.targets, default=0))
        if largest >= self._vocabulary_size:
            raise UsageError(
                f"{where} has token {largest}, but the model knows {self._vocabulary_size}; "
                "give the model of the shards' vocabulary with --model"
            )
        if not sample.tokens or max(sample.positions, default=0) >= len(sample.tokens):
            raise UsageError(f"{where} has a masked position behind its last token")


def _shape(path: Path) -> tuple[int, int]:
    """Rows and width of a file, after a look at all of its datasets."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            missing = [name for name in DATASETS if name not in file]
            if missing:
                raise UsageError(f"{path} has no {', '.join(missing)}; it has {', '.join(file)}")
            shapes = {name: file[name].shape for name in DATASETS}
    except OSError as error:
        raise UsageError(f"{path}: not an HDF5 file ({error})") from None
    rows, width = (*shapes["input_ids"], 0)[:2]
    fits = (
        all(shapes[name] == (rows, width) for name in PER_TOKEN)
        and shapes[PER_GUESS[0]] == shapes[PER_GUESS[1]]
        and all(len(shapes[name]) == 2 and shapes[name][0] == rows for name in PER_GUESS)
        and shapes[LABELS] in ((rows,), (rows, 1))
    )
    if not fits or not rows:
        raise UsageError(f"{path}: its datasets do not fit each other: {shapes}")
    return rows, width
