"""Divide a folder's files into training and evaluation sets, by their names."""

import re
from pathlib import Path

from muster.errors import UsageError
from train.tasks.sources.files import folder_of

TEXT = (".txt", ".tokens", ".raw")  # the last two are WikiText's
SHARDS = (".hdf5", ".h5")
SETS = {"valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
NOT_TEXT = ("vocab.txt", "readme.txt", "license.txt", "requirements.txt")


def find(data_dir: Path | None) -> dict[str, list[Path]]:
    """The files of `train` and, where there are some, `valid` and `test`; all of one kind.

    A file belongs to a set where a word of its name, or of a folder below the folder, says so:
    `valid.txt`, `wiki.test.tokens`, `books_test_3.hdf5`, `validation/0.h5`. All others train.

    Raises:
        UsageError: there is no folder, nothing to train on, or text next to shards.
    """
    folder = folder_of(data_dir)
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in TEXT + SHARDS and path.is_file() and path.name.lower() not in NOT_TEXT:
            sets.setdefault(_set_of(path.relative_to(folder)), []).append(path)
    if "train" not in sets:
        there = ", ".join(str(path.name) for paths in sets.values() for path in paths)
        raise UsageError(
            f"--data-dir {folder} has nothing to train on, no {', '.join(TEXT + SHARDS)}"
            + (f" but those to evaluate on: {there}" if there else "")
        )
    kinds = {path.suffix in SHARDS for paths in sets.values() for path in paths}
    if len(kinds) > 1:
        raise UsageError(f"--data-dir {folder} has text and HDF5 shards; give a folder of one kind")
    return sets


def are_shards(sets: dict[str, list[Path]]) -> bool:
    """Whether the files from `find` are HDF5, not text."""
    return sets["train"][0].suffix in SHARDS


def _set_of(path: Path) -> str:
    words = re.split(r"[^a-z]+", str(path).lower())
    return next((SETS[word] for word in words if word in SETS), "train")
