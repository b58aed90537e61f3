"""An entailment set in GLUE's RTE form, generated from a seed, without a download.

Each sentence of a pair affirms or denies something, in one of many ways. The second follows from
the first if both say the same. The content of the two sentences is drawn independently, so neither
contains the label: it depends on both together, and a sum over words, such as a bag of words,
cannot find it. (In a few more than half of the pairs the second sentence affirms, as people do. So
the first reveals a little about the label, and a model that starts from random weights finds what
to look at within a few epochs; without that it needs many.)
"""

import random
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from muster.writing import write_text

TRAIN_PAIRS = 7040  # 110 steps of 64 an epoch
DEV_PAIRS = 1000
AFFIRMED = 0.6  # of the second sentences
SEED = 598
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

NAMES = (
    "Ada Ben Clara David Emma Felix Grace Hugo Irene Jonas Karin Leo Maria Noah Olga Paul "
    "Rosa Simon Tara Victor"
).split()
TIMES = (
    ("", ""),
    ("", ""),
    ("", " yesterday"),
    ("", " this time"),
    ("On Monday, ", ""),
    ("Last summer, ", ""),
    ("In the end, ", ""),
)


class Deed(NamedTuple):
    """An action of a person on a thing."""

    base: str
    past: str
    participle: str
    thing: str


DEEDS = tuple(
    Deed(*line.split(maxsplit=3))
    for line in (
        "sign signed signed the contract",
        "lock locked locked the front door",
        "write wrote written the report",
        "pay paid paid the electricity bill",
        "read read read the manual",
        "repair repaired repaired the old bicycle",
        "send sent sent the invitation",
        "feed fed fed the cat",
        "water watered watered the rose",
        "sell sold sold the house",
        "book booked booked the hotel room",
        "find found found the lost key",
        "finish finished finished the painting",
        "close closed closed the kitchen window",
        "bring brought brought the letter",
        "cancel cancelled cancelled the order",
        "clean cleaned cleaned the garage",
        "answer answered answered the question",
        "buy bought bought the concert ticket",
        "return returned returned the library book",
    )
)
# What follows from each: that it was done, or that it was not.
DONE = (
    "managed to",
    "remembered to",
    "was able to",
    "took the time to",
    "did not forget to",
)
NOT_DONE = (
    "failed to",
    "forgot to",
    "refused to",
    "was unable to",
    "did not manage to",
    "did not",
)
THINGS = (
    "soup film hotel concert plan coffee food service lecture weather novel speech idea cake "
    "game view garden music wine exhibition"
).split()
GOOD = ("good", "excellent", "wonderful")
BAD = ("bad", "poor", "terrible")


class Pair(NamedTuple):
    """One sample."""

    premise: str
    hypothesis: str
    entailed: bool


def files() -> dict[str, str]:
    """The set in GLUE's form, and the vocabulary for it: text by file name."""
    made = list(islice(pairs(SEED), TRAIN_PAIRS + DEV_PAIRS))
    words = {word for pair in made for text in pair[:2] for word in re.findall(r"\w+|[.,]", text)}
    vocabulary = sorted({word.lower() for word in words})
    return {
        "train.tsv": _tsv(made[:TRAIN_PAIRS]),
        "dev.tsv": _tsv(made[TRAIN_PAIRS:]),
        "vocab.txt": "".join(f"{token}\n" for token in (*SPECIAL_TOKENS, *vocabulary)),
    }


def write(folder: Path) -> None:
    """Write `files()` into `folder`; a reader sees all of a file or none."""
    for name, text in files().items():
        path = folder / name
        if not path.exists() or path.read_bytes() != text.encode():
            write_text(path, text)


def pairs(seed: int) -> Iterator[Pair]:
    """Pairs without end, no two equal."""
    rng = random.Random(seed)
    seen: set[Pair] = set()
    while True:
        says, repeats = rng.random() < 0.5, rng.random() < AFFIRMED
        make = rng.choice((_deed, _opinion))
        pair = Pair(*make(rng, says, repeats), entailed=says == repeats)
        if pair not in seen:
            seen.add(pair)
            yield pair


def _tsv(made: Sequence[Pair]) -> str:
    lines = ["index\tsentence1\tsentence2\tlabel"]
    for index, pair in enumerate(made):
        label = "entailment" if pair.entailed else "not_entailment"
        lines.append(f"{index}\t{pair.premise}\t{pair.hypothesis}\t{label}")
    return "\n".join(lines) + "\n"


def _deed(rng: random.Random, done: bool, is_affirmed: bool) -> tuple[str, str]:
    who, deed = rng.choice(NAMES), rng.choice(DEEDS)
    cue = rng.choice(DONE if done else NOT_DONE)
    premise = f"{who} {cue} {deed.base} {deed.thing}"
    if rng.random() < 0.5:
        verb = "was" if is_affirmed else rng.choice(("was not", "was never"))
        repeated = f"{_capital(deed.thing)} {verb} {deed.participle} by {who}."
        return _set_in_time(rng, premise), repeated
    verb = deed.past if is_affirmed else f"did not {deed.base}"
    return _set_in_time(rng, premise), f"{who} {verb} {deed.thing}."


def _opinion(rng: random.Random, good: bool, is_affirmed: bool) -> tuple[str, str]:
    who, thing = rng.choice(NAMES), rng.choice(THINGS)
    premise = f"{who} found the {thing} {rng.choice(GOOD if good else BAD)}"
    word = rng.choice(GOOD if is_affirmed else BAD)
    return _set_in_time(rng, premise), f"The {thing} was {word}."


def _set_in_time(rng: random.Random, clause: str) -> str:
    before, after = rng.choice(TIMES)
    return f"{before}{clause}{after}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
