"""A data set and a model for the benchmark are made: RTE's lengths, and weights all start from."""

import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from muster.errors import UsageError

VOCABULARY = 30522  # of bert-base-uncased
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL))]
SHAPES = {
    # BERT-mini's: 44.7 MB of gradients in 73 tensors, over half of it the word embedding
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
              "intermediate_size": 1024},
    # BERT-base's: 438 MB in 201 tensors, a fifth of it the word embedding
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072},
}  # fmt: skip
# Tokens of RTE's training samples, by their share: a mean of 67, and 13 % are cut off at 128.
QUANTILES = {0: 13, 0.1: 33, 0.2: 40, 0.3: 45, 0.4: 50, 0.5: 56, 0.6: 62, 0.7: 73, 0.8: 103}
QUANTILES |= {0.874: 128, 1: 160}
SEPARATORS = 3  # [CLS] first [SEP] second [SEP]
# How rare the words are: with it 64 samples hold about 1,500 different tokens, as RTE's do.
ZIPF_POWER, ZIPF_SHIFT = 1.1, 1.0


@dataclass(frozen=True)
class Made:
    """What all cases of a benchmark train on, and start from."""

    model: Path  # a folder with config, weights and tokenizer
    data: Path  # a folder with RTE's files
    gradient_bytes: int
    tensors: int


def sample_lengths(count: int, drawn: random.Random) -> list[int]:
    """Tokens of `count` samples, before they are cut off."""
    at = [drawn.random() for _ in range(count)]
    return [round(one) for one in np.interp(at, list(QUANTILES), list(QUANTILES.values()))]


def data_set(folder: Path, train: int = 2490, dev: int = 16, seed: int = 598) -> Path:
    """Write RTE's files of made-up words; the first words are common, the last ones rare."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(seed)
    rarity = list(accumulate((rank + 1 + ZIPF_SHIFT) ** -ZIPF_POWER for rank in range(len(WORDS))))
    for name, count in (("train", train), ("dev", dev)):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        for index, length in enumerate(sample_lengths(count, drawn)):
            text = drawn.choices(WORDS, cum_weights=rarity, k=length - SEPARATORS)
            second = min(drawn.randint(4, 18), len(text) // 2)
            label = drawn.choice(("entailment", "not_entailment"))
            lines.append(f"{index}\t{' '.join(text[second:])}\t{' '.join(text[:second])}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def ready(model: str, data: Path | None, folder: Path, seed: int, **shape: int) -> Made:
    """Save the model once for all, without dropout; the `model`s of SHAPES, and no data, are made.

    Raises:
        UsageError: the given data are not RTE's.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, BertConfig
    from transformers.utils import logging

    from train.model.rng import set_dropout

    given = None if data is None else _given(data)
    logging.disable_progress_bar()
    torch.manual_seed(seed)
    if model in SHAPES:
        config = BertConfig(vocab_size=VOCABULARY, **{**SHAPES[model], **shape})
        built: Any = AutoModelForSequenceClassification.from_config(config)
        tokenizer = _tokenizer()
    else:
        built = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(model)
    set_dropout(built, 0.0)
    built.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    params = list(built.parameters())
    return Made(
        folder / "model",
        given or data_set(folder / "RTE"),
        sum(param.nbytes for param in params),
        len(params),
    )


def _tokenizer() -> Any:
    from transformers import BertTokenizerFast

    return BertTokenizerFast(vocab={word: at for at, word in enumerate((*SPECIAL, *WORDS))})


def _given(data: Path) -> Path:
    for folder in (data, data / "RTE"):
        if (folder / "train.tsv").is_file():
            return folder.resolve()
    raise UsageError(f"--data-dir {data}: neither it nor its RTE/ has a train.tsv")
