"""Samples of unequal length, and transformers' collators that pad them to a rectangle."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from train.tasks.base import Batch

# One example of t tokens: "input_ids", other values of each token (t,), and tags as "labels"; or
# "label", a class number or a score.
Sample = dict[str, Any]


class TokenSet:
    """The samples of one cached set."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        tokens = dict(tensors)
        self._label = tokens.pop("label", None)
        self._offsets: list[int] = tokens.pop("offsets").tolist()
        self._tokens = tokens

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @property
    def lengths(self) -> Tensor:
        """Tokens of each sample: int64 (n,)."""
        return torch.tensor(self._offsets).diff()

    def __getitem__(self, index: int) -> Sample:
        start, end = self._offsets[index], self._offsets[index + 1]
        sample: Sample = {key: flat[start:end].tolist() for key, flat in self._tokens.items()}
        return sample if self._label is None else {**sample, "label": self._label[index].item()}


def collator(
    tokenizer: Any, width: int | None, multiple: int, *, tags: bool = False
) -> Callable[[Sequence[Sample]], Batch]:
    """A function that makes a batch, padded like `tokenizer`: int64 (n, width), and labels (n,).

    `width` None: that of the longest sample, rounded up to a `multiple`. With `tags`, tokens have
    labels.
    """
    from transformers import DataCollatorForTokenClassification, DataCollatorWithPadding

    kind = DataCollatorForTokenClassification if tags else DataCollatorWithPadding
    if width is None:
        pad = kind(tokenizer, padding="longest", pad_to_multiple_of=multiple)
    else:
        pad = kind(tokenizer, padding="max_length", max_length=width)
    return lambda samples: dict(pad(samples))
