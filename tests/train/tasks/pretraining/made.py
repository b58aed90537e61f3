"""Text, shards in NVIDIA's layout, and a small model for BERT's pre-training."""

from pathlib import Path
from typing import Any

import h5py
import numpy

from tests.train.tasks.text.made import MODEL as SMALL

WIDTH = 12
WORDS = [f"w{number}" for number in range(30)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, "##x"]
MODEL = {**SMALL, "hidden_size": 32}


def text(documents: int) -> str:
    """Return documents of one word each, so that masked words and next sentences can be told."""
    sentence = "{word} {word} {word} {word} .\n"
    return "\n".join(sentence.format(word=WORDS[at % 30]) * 6 for at in range(documents))


def write_shard(path: Path, rows: int, start: int = 0, **changed: Any) -> Path:
    """Write a shard like NVIDIA's create_pretraining_data.py; row r's tokens are 10 + start + r."""
    numbers = numpy.arange(rows)[:, None]
    mask = numpy.arange(WIDTH) < 6 + numbers % 4
    data = {
        "input_ids": mask * (10 + start + numbers),
        "input_mask": mask,
        "segment_ids": mask & (numpy.arange(WIDTH) >= 3),
        "masked_lm_positions": numpy.array([[1, 4, 0]] * rows),
        "masked_lm_ids": numpy.array([[7, 8, 0]] * rows),
        "next_sentence_labels": numpy.arange(rows) % 2,
    } | changed
    with h5py.File(path, "w") as file:
        for name, values in data.items():
            if values is not None:
                kind = "i4" if name.endswith(("ids", "positions")) else "i1"
                file.create_dataset(name, data=values, dtype=kind, compression="gzip")
    return path


def one_token_shard(path: Path, rows: int) -> None:
    """Write rows of one repeated token, with one or two positions masked."""
    numbers = numpy.arange(rows)[:, None]
    ids = numpy.full((rows, 16), 6) + numbers % 20
    positions = numpy.where(numbers % 3 == 0, [2, 0, 0], [2, 5, 0])
    write_shard(
        path, rows,
        input_ids=ids, input_mask=numpy.ones_like(ids),
        segment_ids=numpy.arange(16)[None].repeat(rows, 0) // 8,
        masked_lm_positions=positions,
        masked_lm_ids=numpy.where(positions > 0, 6 + numbers % 20, 0),
    )  # fmt: skip
