"""Make the benchmark's data set, with RTE's lengths, and the weights that all cases start from."""

import random
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from muster.errors import UsageError
from train.model.rng import set_dropout

VOCABULARY = 30522  # of bert-base-uncased
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORDS = [f"w{number}" for number in range(VOCABULARY - len(SPECIAL))]
SHAPES: dict[str, dict[str, Any]] = {
    # BERT-mini's: 44.7 MB of gradients in 73 tensors, over half of it the word embedding
    "small": {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
              "intermediate_size": 1024},
    # BERT-base's: 438 MB in 201 tensors, a fifth of it the word embedding
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
             "intermediate_size": 3072},
    # for tests
    "tiny": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 32, "initializer_range": 0.2},
}  # fmt: skip
# Lengths of RTE's training samples in tokens, by quantile: 67 on average; 13 % are cut off at 128.
QUANTILES = {0: 13, 0.1: 33, 0.2: 40, 0.3: 45, 0.4: 50, 0.5: 56, 0.6: 62, 0.7: 73, 0.8: 103}
QUANTILES |= {0.874: 128, 1: 160}
SEPARATORS = 3  # [CLS] first [SEP] second [SEP]
# How rare the words are: with these, 64 samples have about 1,500 different tokens, as in RTE.
ZIPF_POWER, ZIPF_SHIFT = 1.1, 1.0


@dataclass(frozen=True)
class Made:
    """The data that all cases of a benchmark train on, and the model that they start from."""

    model: Path  # a folder with config, weights and tokenizer
    data: Path  # a folder with RTE's files
    gradient_bytes: int
    tensors: int


def data_set(folder: Path) -> Path:
    """Write RTE's files with made-up words; the first words are common, the last ones rare."""
    folder.mkdir()
    drawn = random.Random(598)
    rarity = list(accumulate((rank + 1 + ZIPF_SHIFT) ** -ZIPF_POWER for rank in range(len(WORDS))))
    for name, count in (("train", 2490), ("dev", 16)):
        lines = ["index\tsentence1\tsentence2\tlabel"]
        at = [drawn.random() for _ in range(count)]
        lengths = np.interp(at, list(QUANTILES), list(QUANTILES.values())).round()
        for index, length in enumerate(lengths.astype(int)):
            text = drawn.choices(WORDS, cum_weights=rarity, k=length - SEPARATORS)
            second = min(drawn.randint(4, 18), len(text) // 2)
            label = drawn.choice(("entailment", "not_entailment"))
            lines.append(f"{index}\t{' '.join(text[second:])}\t{' '.join(text[:second])}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def ready(model: str, data: Path | None, folder: Path, seed: int) -> Made:
    """Save one model for all cases, without dropout; if it is in SHAPES, it is made here.

    Without `data`, a data set is made as well.

    Raises:
        UsageError: `data` has no train.tsv.
    """
    if data and not (data / "train.tsv").is_file():
        raise UsageError(f"--data-dir {data}: it has no train.tsv")
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(seed)
    if model in SHAPES:
        config = transformers.BertConfig(vocab_size=VOCABULARY, **SHAPES[model])
        built: Any = transformers.BertForSequenceClassification(config)
        words = enumerate((*SPECIAL, *WORDS))
        tokenizer = transformers.BertTokenizerFast(vocab={word: at for at, word in words})
    else:
        auto = transformers.AutoModelForSequenceClassification
        built = auto.from_pretrained(model, dtype=torch.float32)
        tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    set_dropout(built, 0.0)
    built.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    params = list(built.parameters())
    return Made(
        folder / "model",
        data.resolve() if data else data_set(folder / "RTE"),
        sum(param.nbytes for param in params),
        len(params),
    )
