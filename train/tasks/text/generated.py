"""An entailment set in GLUE's RTE form, generated from a seed, without a download.

Each sentence of a pair affirms or denies something, in one of many ways. The second follows from
the first if both affirm or both deny. This is drawn independently for the two sentences, so neither
contains the label: it depends on both together, and a sum over words, such as a bag of words,
cannot find it. (In slightly more than half of the pairs, the second sentence affirms, as people do.
So the first reveals a little about the label, and a model with random weights learns where to look
within a few epochs; otherwise, it would need many.)
"""

import random
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from muster.writing import write_text

TRAIN_PAIRS = 7040  # 110 steps of 64 per epoch
DEV_PAIRS = 1000
AFFIRMED = 0.6  # share of the second sentences
SEED = 598
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

WORDS = Path(__file__).with_suffix(".yaml")


@cache
def words() -> dict[str, list[Any]]:
    """The building blocks of sentences."""
    return dict(yaml.safe_load(WORDS.read_text(encoding="utf-8")))


class Pair(NamedTuple):
    """One sample."""

    premise: str
    hypothesis: str
    label: str


def files() -> dict[str, str]:
    """The set in GLUE's form, and the vocabulary for it: text by file name."""
    made = list(islice(pairs(SEED), TRAIN_PAIRS + DEV_PAIRS))
    used = {word for pair in made for text in pair[:2] for word in re.findall(r"\w+|[.,]", text)}
    vocabulary = sorted({word.lower() for word in used})
    return {
        "train.tsv": _tsv(made[:TRAIN_PAIRS]),
        "dev.tsv": _tsv(made[TRAIN_PAIRS:]),
        "vocab.txt": "".join(f"{token}\n" for token in (*SPECIAL_TOKENS, *vocabulary)),
    }


def write(folder: Path) -> None:
    """Write `files()` into `folder`; a reader never sees a part of a file."""
    for name, text in files().items():
        path = folder / name
        if not path.exists() or path.read_bytes() != text.encode():
            write_text(path, text)


def pairs(seed: int) -> Iterator[Pair]:
    """Yield an endless sequence of pairs, no two of them equal."""
    rng = random.Random(seed)
    seen: set[Pair] = set()
    while True:
        says, repeats = rng.random() < 0.5, rng.random() < AFFIRMED
        make = rng.choice((_deed, _opinion))
        label = "entailment" if says == repeats else "not_entailment"
        pair = Pair(*make(rng, says, repeats), label)
        if pair not in seen:
            seen.add(pair)
            yield pair


def _tsv(made: Sequence[Pair]) -> str:
    lines = ["index\tsentence1\tsentence2\tlabel"]
    lines += ["\t".join((str(index), *pair)) for index, pair in enumerate(made)]
    return "\n".join(lines) + "\n"


def _deed(rng: random.Random, done: bool, is_affirmed: bool) -> tuple[str, str]:
    who, deed = rng.choice(words()["names"]), rng.choice(words()["deeds"])
    base, past, participle, thing = deed.split(maxsplit=3)
    cue = rng.choice(words()["done" if done else "not_done"])
    premise = f"{who} {cue} {base} {thing}"
    if rng.random() < 0.5:
        verb = "was" if is_affirmed else rng.choice(("was not", "was never"))
        return _set_in_time(rng, premise), f"{thing.capitalize()} {verb} {participle} by {who}."
    verb = past if is_affirmed else f"did not {base}"
    return _set_in_time(rng, premise), f"{who} {verb} {thing}."


def _opinion(rng: random.Random, good: bool, is_affirmed: bool) -> tuple[str, str]:
    who, thing = rng.choice(words()["names"]), rng.choice(words()["things"])
    premise = f"{who} found the {thing} {rng.choice(words()['good' if good else 'bad'])}"
    word = rng.choice(words()["good" if is_affirmed else "bad"])
    return _set_in_time(rng, premise), f"The {thing} was {word}."


def _set_in_time(rng: random.Random, clause: str) -> str:
    before, after = rng.choice(words()["times"])
    return f"{before}{clause}{after}."
