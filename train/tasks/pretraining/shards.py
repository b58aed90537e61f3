"""Read samples from HDF5 files in NVIDIA's layout, each when it is used; write such files."""

import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import torch

from muster.errors import UsageError, text_of
from muster.worker.process import atomic_replacement
from muster.writing import writing
from train.tasks.base import Samples
from train.tasks.pretraining.segment_pairs import PairSample, padded

PER_TOKEN = ("input_ids", "input_mask", "segment_ids")  # (n, width)
PER_GUESS = ("masked_lm_positions", "masked_lm_ids")  # (n, most guesses), padded with zeros
LABELS = "next_sentence_labels"  # (n,), 1 if the second segment is from elsewhere
DATASETS = (*PER_TOKEN, *PER_GUESS, LABELS)
SMALL = ("input_mask", "segment_ids", LABELS)  # values of 0 and 1
# Compressed chunks are unpacked once for all of their rows. This many bytes are cached per process,
# over all shards, and at least HDF5's own default for each dataset.
CACHE_BYTES, LEAST_CACHE_BYTES = 512 * 2**20, 2**20
WRITTEN_ROWS = 1000  # in memory while a shard is written


class Shards:
    """The rows of all `paths`, in order.

    Raises:
        UsageError: a file is not HDF5, or lacks a dataset of whole numbers; on reading, a row
            cannot be read, or has a value that is invalid in its column, such as a token beyond the
            model's `vocabulary_size`.
    """

    def __init__(self, paths: list[Path], vocabulary_size: int) -> None:
        self.paths, self._vocabulary_size = paths, vocabulary_size
        shapes = [_shape(path) for path in paths]
        self._ends = list(accumulate(rows for rows, _ in shapes))
        self.width = max(width for _, width in shapes)
        self._open = dict[tuple[int, int], dict[str, Any]]()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> PairSample:
        number = bisect_right(self._ends, index)
        row = index - (self._ends[number - 1] if number else 0)
        where = f"{self.paths[number]}: row {row}"
        try:
            read = {name: values[row] for name, values in self._opened(number).items()}
        except OSError as error:  # the chunk is damaged, or its filter is not installed
            raise UsageError(f"{where} cannot be read ({text_of(error)})") from None
        mask = read["input_mask"].tolist()
        length = mask.count(1)
        if any(value != (at < length) for at, value in enumerate(mask)):
            raise UsageError(f"{where}: input_mask must be ones followed by zeros")
        tokens, segments = (read[name].tolist()[:length] for name in PER_TOKEN[::2])
        positions, targets = (read[name].tolist() for name in PER_GUESS)
        guesses = positions.index(0) if 0 in positions else len(positions)  # 0 is [CLS]
        sample = PairSample(
            tokens, segments, positions[:guesses], targets[:guesses], int(read[LABELS].item())
        )
        self._check(sample, where)
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_open": {}}  # without open files

    def _opened(self, number: int) -> dict[str, Any]:
        """The datasets of a file, opened by this process: HDF5's handles do not survive a fork."""
        key = os.getpid(), number
        if key not in self._open:
            share = CACHE_BYTES // (len(self.paths) * len(DATASETS))
            cache_bytes = max(LEAST_CACHE_BYTES, share)
            file = h5py.File(self.paths[number], "r", rdcc_nbytes=cache_bytes, locking=False)
            # A dataset's cache lives as long as the dataset is open: this is forty times faster.
            self._open[key] = {name: file[name] for name in DATASETS}
        return self._open[key]

    def _check(self, sample: PairSample, where: str) -> None:
        largest = max(max(sample.tokens, default=0), max(sample.targets, default=0))
        if largest >= self._vocabulary_size:
            raise UsageError(
                f"{where} has token {largest}, but the model's vocabulary has "
                f"{self._vocabulary_size} tokens"
                "\ntip: choose a --model with the vocabulary of the shards"
            )
        if not sample.tokens or max(sample.positions, default=0) >= len(sample.tokens):
            raise UsageError(f"{where} has a masked position after its last token")
        columns = (sample.tokens, sample.segments, sample.positions, sample.targets)
        for name, values in zip((*PER_TOKEN[::2], *PER_GUESS), columns, strict=True):
            if min(values, default=0) < 0:
                raise UsageError(f"{where}: {name} must not be negative, got {min(values)}")
        for name, most in (("segment_ids", max(sample.segments)), (LABELS, sample.is_random_next)):
            if not 0 <= most <= 1:
                raise UsageError(f"{where}: {name} must be 0 or 1, got {most}")


def _shape(path: Path) -> tuple[int, int]:
    """Check all datasets of a file, and return its number of rows and its width."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            missing = [name for name in DATASETS if name not in file]
            if missing:
                raise UsageError(f"{path} has no {', '.join(missing)}; it has {', '.join(file)}")
            for name in DATASETS:
                if not isinstance(file[name], h5py.Dataset):
                    raise UsageError(f"{path}: {name} is a group, not a dataset")
                if file[name].dtype.kind not in "iub":
                    raise UsageError(
                        f"{path}: {name} must contain whole numbers, got {file[name].dtype}"
                    )
            shapes: dict[str, tuple[int, ...]] = {name: file[name].shape or () for name in DATASETS}
    except KeyError as error:  # a broken link
        raise UsageError(f"{path}: a dataset cannot be opened ({text_of(error)})") from None
    except OSError as error:
        raise UsageError(f"{path}: not an HDF5 file ({text_of(error)})") from None
    rows, width = [*shapes["input_ids"], 0, 0][:2]
    fits = (
        all(shapes[name] == (rows, width) for name in PER_TOKEN)
        and shapes[PER_GUESS[0]] == shapes[PER_GUESS[1]]
        and all(len(shapes[name]) == 2 and shapes[name][0] == rows for name in PER_GUESS)
        and shapes[LABELS] in ((rows,), (rows, 1))
    )
    if not fits:
        raise UsageError(f"{path}: the shapes of its datasets do not match: {shapes}")
    if not rows:
        raise UsageError(f"{path} is empty: its datasets have no rows\ntip: leave it out")
    return rows, width


def write(path: Path, samples: Samples, width: int, guesses: int) -> None:
    """Write `samples` as one uncompressed shard; its file is either complete or absent.

    A sample has at most `width` tokens, of which at most `guesses` are hidden.

    Raises:
        CannotWrite: the disk is full or refuses the file.
    """
    rows = len(samples)
    with writing(path), atomic_replacement(path) as partial, h5py.File(partial, "w") as file:
        for start in range(0, rows, WRITTEN_ROWS):
            part = [samples[at] for at in range(start, min(start + WRITTEN_ROWS, rows))]
            columns = {
                "input_ids": padded((sample.tokens for sample in part), width),
                "input_mask": padded(([1] * len(sample.tokens) for sample in part), width),
                "segment_ids": padded((sample.segments for sample in part), width),
                "masked_lm_positions": padded((sample.positions for sample in part), guesses),
                "masked_lm_ids": padded((sample.targets for sample in part), guesses),
                LABELS: torch.tensor([sample.is_random_next for sample in part]),
            }
            for name, values in columns.items():
                if not start:
                    kind = "i1" if name in SMALL else "i4"
                    file.create_dataset(name, (rows, *values.shape[1:]), kind)
                file[name][start : start + len(part)] = values
