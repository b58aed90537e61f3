"""Turn text into token ids with the tokenizer of the model."""

import json
from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from itertools import accumulate, chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from muster.errors import UsageError
from train.tasks.sources import hub
from train.tasks.sources.files import numbered_lines, refuse_stand_in

BATCH = 1000  # texts that the fast tokenizers divide among the cores at a time
IGNORED = -100  # the label of padding and of tokens that do not begin a word
MAX_UNKNOWN = 0.3  # of the tokens; real text has less than 0.02 with the right vocabulary
# A tokenizer's folder has one of these; without any, transformers 5 makes up an empty tokenizer.
FILES = (
    "tokenizer.json vocab.txt vocab.json tokenizer.model spiece.model sentencepiece.bpe.model"
).split()
# Settings for a tokenizer's outputs other than ids and for its cuts, which its backend lacks.
SETTINGS = (
    "model_input_names padding_side truncation_side special_tokens_map split_special_tokens"
).split()


def load(name: str, lower_case: str) -> Any:
    """The tokenizer from a Hub name, a folder, or a bare WordPiece vocab.txt.

    Raises:
        UsageError: there is no tokenizer, or it does not treat case as `lower_case` says.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        present = {file.name for file in path.iterdir()}
        if present.isdisjoint(FILES):
            raise UsageError(
                f"{name} has no tokenizer file (one of {', '.join(FILES)})"
                "\ntip: choose a tokenizer with --tokenizer"
            )
        read = {"tokenizer.json"} & present or set(FILES) & present
        for file in sorted(read):  # an LFS pointer could be read as three words
            refuse_stand_in(path / file, "--tokenizer")
        if present.isdisjoint({"tokenizer.json", "tokenizer_config.json"}):
            path /= "vocab.txt"
    if path.is_file():
        return _from_vocabulary(path, lower_case)
    from transformers import AutoTokenizer

    tokenizer = hub.fetch("--tokenizer", name, AutoTokenizer.from_pretrained)
    lowers = getattr(tokenizer, "do_lower_case", None)
    if lower_case != "auto" and lowers is not None and lowers != (lower_case == "yes"):
        raise UsageError(
            f"--lower-case is {lower_case}, but the tokenizer of {name} "
            f"{'converts to lower case' if lowers else 'keeps case'}"
            "\ntip: leave out --lower-case"
        )
    return tokenizer


def identity(tokenizer: Any) -> str:
    """A text that differs if two tokenizers would give different tokens, or other inputs."""
    parts: dict[str, Any] = {name: getattr(tokenizer, name, None) for name in SETTINGS}
    parts |= {name: version(name) for name in ("transformers", "tokenizers")}
    if tokenizer.is_fast:
        parts["backend"] = json.loads(tokenizer.backend_tokenizer.to_str())
        for use in ("truncation", "padding"):  # settings of the last call
            parts["backend"].pop(use)
    else:
        parts |= {"type": type(tokenizer).__name__, "words": tokenizer.get_vocab()}
        parts |= {  # not where it was read from
            f"init {name}": value
            for name, value in tokenizer.init_kwargs.items()
            if not name.endswith(("_file", "_path"))
        }
        with TemporaryDirectory() as folder:  # merges, or sentencepiece's model
            paths = map(Path, sorted(tokenizer.save_vocabulary(folder)))
            parts["files"] = [sha256(path.read_bytes()).hexdigest() for path in paths]
    return json.dumps(parts, sort_keys=True, default=str)


def encode(
    tokenizer: Any,
    columns: Sequence[Sequence[Any]],
    max_seq_length: int,
    tags: Sequence[Sequence[int]] | None = None,
) -> dict[str, Tensor]:
    """Encode n examples as one row of token ids, and note where each example begins.

    `columns` has one or two texts of each example. With `tags`, an example is a list of words, and
    each word has a tag: the label of its first token.

    Returns:
        input_ids, token_type_ids if the tokenizer makes them, and labels if there are tags: int32
        (all tokens,);
        offsets: int64 (n + 1,), example i is [offsets[i], offsets[i + 1]).
    """
    options = {"truncation": True, "max_length": max_seq_length, "return_attention_mask": False}
    flat = defaultdict[str, list[int]](list)
    lengths: list[int] = []
    for start in range(0, len(columns[0]), BATCH):
        part = slice(start, start + BATCH)
        texts = (column[part] for column in columns)
        encoded = tokenizer(*texts, is_split_into_words=tags is not None, **options)
        if tags is not None:
            rows = enumerate(tags[part])
            encoded["labels"] = [_first_token_tags(encoded.word_ids(row), own) for row, own in rows]
        for key, values in encoded.items():
            flat[key].extend(chain.from_iterable(values))
        lengths += map(len, encoded["input_ids"])
    tensors = {key: torch.tensor(tokens, dtype=torch.int32) for key, tokens in flat.items()}
    return {**tensors, "offsets": torch.tensor([0, *accumulate(lengths)])}


def _first_token_tags(words: list[int | None], tags: Sequence[int]) -> list[int]:
    """The tag of each token that begins a word; `words` has the number of each token's word."""
    return [
        IGNORED if word is None or word == before else tags[word]
        for before, word in pairwise([None, *words])
    ]


def refuse_unknown(tokenizer: Any, name: str, input_ids: Tensor) -> None:
    """Refuse a tokenizer whose vocabulary lacks too many of the text's words.

    Raises:
        UsageError: more than `MAX_UNKNOWN` of the tokens are unknown.
    """
    unknown_id = tokenizer.unk_token_id
    if unknown_id is None:
        return  # a byte tokenizer, which has a token for everything
    special = torch.tensor([token for token in tokenizer.all_special_ids if token != unknown_id])
    words = int((~torch.isin(input_ids, special)).sum())
    share = int((input_ids == unknown_id).sum()) / max(1, words)
    if share > MAX_UNKNOWN:
        raise UsageError(
            f"the tokenizer of {name} turns {share:.0%} of the words into {tokenizer.unk_token}: "
            "its vocabulary does not match the text"
            "\ntip: choose another --tokenizer, or check --lower-case"
        )


def _from_vocabulary(path: Path, lower_case: str) -> Any:
    if path.suffix != ".txt":
        raise UsageError(f"--tokenizer {path}: expected a Hub name, a folder, or a vocab.txt")
    refuse_stand_in(path, "--tokenizer")
    lines = list(numbered_lines(path))
    while lines and not lines[-1][1]:  # blank lines at the end are not tokens
        lines.pop()
    first = dict[str, int]()
    for number, word in lines:
        if word in first:
            raise UsageError(
                f"--tokenizer {path}:{number}: {word!r} is also in line {first[word]}, but every "
                "line must be a different token"
            )
        first[word] = number
    words = list(first)
    missing = [token for token in ("[PAD]", "[UNK]", "[CLS]", "[SEP]") if token not in words]
    if missing:
        raise UsageError(
            f"--tokenizer {path}: not a BERT vocabulary, because it has no {', '.join(missing)}"
        )
    whole = [word for word in words if not word.startswith("[")]  # not [CLS] and the like
    is_lower = lower_case == "auto" and all(word == word.lower() for word in whole)
    from transformers import BertTokenizerFast

    # vocab=: transformers 5 silently ignores vocab_file=.
    numbers = {word: number for number, word in enumerate(words)}
    return BertTokenizerFast(vocab=numbers, do_lower_case=is_lower or lower_case == "yes")
