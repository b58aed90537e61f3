"""Settings as they were given, on a command line or in a file, before they have types."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from muster.errors import UsageError

SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

# Settings that were, the value that meant nothing, and what to do without them.
GONE = {
    "levels": ("auto", "all workers are one ring; leave it out"),
    "local_group": ("rank", "each worker of --sync local_sgd trains alone; leave it out"),
}
# Values that were, likewise.
GONE_VALUES = {("bucket_mb", "auto"): "no size is found by trying any more; leave it out"}


class Given(NamedTuple):
    """One setting as text; a switch that was only named has the text true or false."""

    name: str  # of the field
    text: str
    where: str = ""  # "FILE:LINE: " for one from a file


def dashed(name: str) -> str:
    return name.replace("_", "-")


def dashed_flags(words: Sequence[str]) -> list[str]:
    """Every flag before `--` spelt with dashes, to which underscores are equal."""
    own = words.index("--") if "--" in words else len(words)
    parted = [word.partition("=") for word in words[:own]]
    return [
        (dashed(name) if name.startswith("--") else name) + equals + text
        for name, equals, text in parted
    ] + list(words[own:])


def from_argv(
    argv: Sequence[str], flags: Mapping[str, str], switches: Collection[str], hint: str = ""
) -> tuple[list[Given], list[str]]:
    """The settings in `argv`, and one line for each word that is none.

    `flags` gives the field of every spelling (with dashes; underscores are equal to them), those
    that turn a switch off included. Abbreviations are unknown flags, as typing errors are. `hint`
    is what is said further of a word that is neither a flag nor a value.
    """
    raw, problems = [], []
    rest = list(argv)
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        flag = dashed(word)
        name = flags.get(flag)
        if not flag.startswith("-"):
            problems.append(f"unknown argument {word!r}; settings are given as --flag VALUE{hint}")
        elif (gone := flag[2:].replace("-", "_")) in GONE:
            problems.append(f"there is no {flag} any more: {GONE[gone][1]}")
            rest = rest if equals else rest[1:]
        elif name is None:
            problems.append(f"unknown flag {word}; {_alike(flag, flags) or 'see --help'}")
        elif name in switches and not equals:
            raw.append(Given(name, "false" if flag.startswith("--no-") else "true"))
        elif flag.startswith("--no-"):
            problems.append(f"{flag} takes no value (got {text!r})")
        elif equals and text:
            raw.append(Given(name, text))
        elif not equals and rest and not _is_flag(rest[0], flags):
            raw.append(Given(name, rest.pop(0)))
        else:
            problems.append(f"{flag} needs a value")
    return raw, problems


def _alike(name: str, known: Collection[str]) -> str:
    """A question after the known name that was meant; empty where none is like `name`."""
    name = name.lower()
    near = sorted(one for one in known if len(name) > 3 and one.startswith(name))
    near += difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else ""


def _is_flag(word: str, flags: Mapping[str, str]) -> bool:
    return word.startswith("--") or dashed(word.partition("=")[0]) in flags  # -1e-4 is none


def joined(raw: Sequence[Given], separators: Mapping[str, str | None]) -> list[Given]:
    """`raw` with the texts of each setting that may be repeated in one, `separators` between."""
    texts: dict[str, list[str]] = {}
    for one in raw:
        texts.setdefault(one.name, []).append(one.text)
    return [
        *(one for one in raw if not separators[one.name]),
        *(Given(name, end.join(texts[name])) for name in texts if (end := separators[name])),
    ]


def from_file(path: Path, known: Collection[str]) -> tuple[list[Given], list[str]]:
    """The settings in a YAML file of `name: value` lines, and one line for each wrong key.

    Values stay the text they are, so that `lr: 1e-4` and `lower_case: yes` mean what the flags do.

    Raises:
        UsageError: the file cannot be read, or is not such a file.
    """
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (UnicodeDecodeError, yaml.reader.ReaderError):
        raise UsageError(f"--config {path}: not a text file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{mark.line + 1}:" if mark else ""
        raise UsageError(f"{path}:{line} not YAML: {getattr(error, 'problem', error)}") from None
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}: expected lines of 'name: value'")
    raw, problems = [], []
    seen: set[str] = set()
    for key, value in root.value:
        name = str(key.value).replace("-", "_")
        where = f"{path}:{key.start_mark.line + 1}: "
        if name in GONE:
            if getattr(value, "value", None) != GONE[name][0]:
                problems.append(f"{where}there is no {name} any more: {GONE[name][1]}")
        elif name not in known:
            hint = _alike(name, known) or f"known: {', '.join(sorted(known))}"
            problems.append(f"{where}unknown key {key.value!r}; {hint}")
        elif name in seen:
            problems.append(f"{where}{name} is given twice")
        elif not isinstance(value, yaml.ScalarNode):
            problems.append(f"{where}{name}: expected one value, got a list or a mapping")
        else:
            empty = value.tag == "tag:yaml.org,2002:null"
            raw.append(Given(name, "null" if empty else value.value, where))
        seen.add(name)
    return raw, problems
