"""Settings as text, before they get their types: from files, and with advice on removed ones."""

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from configs.settings.fields import flag
from muster.errors import UsageError, closest
from muster.terminal import TIP

SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

MOST_BYTES = 200_000  # of a settings file, which is written by hand
MOST_LISTED = 25  # names in a message; there are more settings
LISTS_SETTINGS = "muster run --help-all lists all settings"
DELETING = frozenset(("overwrite", "no-overwrite"))  # remove files
# Keys of the file that `accelerate config` writes, and what to use in its place.
ACCELERATE_KEYS = {"compute_environment", "distributed_type"}
ACCELERATE_REMEDY = (
    "replace accelerate's num_machines with --nodes, num_processes with --nproc-per-node (workers "
    "on each node), and mixed_precision with --env ACCELERATE_MIXED_PRECISION=VALUE"
)
# Values that an earlier release had, and what to use instead.
REMOVED_VALUES = {
    ("bucket_mb", "auto"): "leave it out: bucket sizes are no longer tuned automatically"
}
# Settings that an earlier release had, and what to use instead.
REMOVED = {
    "compress_share": "it belonged to topk, which was removed; for powersgd, use compress_rank",
    "preflight": "leave it out: the nodes are always checked",
    "random_weights": "for random weights, set --model to the path of a config.json",
    "tensorboard": "use --log-with tensorboard, or log_with: tensorboard in a file",
} | {
    name: f"pass this sbatch option as --slurm {name}=VALUE, or as slurm in a file"
    for name in ("constraint", "nodelist", "qos", "reservation")
}
# Their defaults, unless these were null: a run's config.yaml has all settings of its release.
REMOVED_DEFAULTS = {
    "compress_share": "0.01",
    "preflight": "true",
    "random_weights": "false",
    "tensorboard": "false",
}


Source = Literal["command line", "file", "recipe", "cluster"]


class RawSetting(NamedTuple):
    """One setting as text; a switch without a value has the text true or false."""

    name: str  # of the field
    text: str
    where: str = ""  # "FILE:LINE: " for a setting from a file
    source: Source = "command line"

    @property
    def spelt(self) -> str:
        """The setting as it was given, for a message about it."""
        return f"{self.where}{self.name}" if self.where else flag(self.name)


def alike(name: str, known_names: Collection[str]) -> str:
    """A question that suggests the known name most like `name`; empty if none is similar.

    It suggests no flag that deletes files.
    """
    dashes = "--" if name.startswith("-") else ""
    names = {
        known_name.removeprefix(dashes)
        for known_name in known_names
        if known_name.startswith(dashes)
    }
    similar = closest(name.lstrip("-"), names - DELETING)
    return f"did you mean {dashes}{similar}?" if similar else ""


def hint_for(name: str, known_names: Collection[str], problems: Collection[str]) -> str:
    """The end of a line about an unknown name: what replaces it, a similar one, or all known names.

    It does not list them again if one of the earlier `problems` does.
    """
    if meant := REMOVED.get(name) or alike(name, known_names):
        return f"{TIP}{meant}"
    names = f"{TIP}choose from {', '.join(sorted(known_names))}"
    hint = f"{TIP}{LISTS_SETTINGS}" if len(known_names) > MOST_LISTED else names
    return "" if any(problem.endswith(hint) for problem in problems) else hint


def with_home(text: str) -> str:
    """A path with the home folder in place of its `~`; unchanged if the home is unknown.

    Shells do not expand the `~` in `--logs-dir=~/runs`, and nothing expands it in files.
    """
    return os.path.expanduser(text)  # noqa: PTH111 (Path raises without a home)


def text_of(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that a person has written, on any system.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8 text, or is too long to have been written by hand.
    """
    with path.open("rb") as file:  # perhaps a pipe, which has no size
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes, so it is probably the wrong file")
    if b"\0" in data:
        raise ValueError("not a text file")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} is not valid UTF-8") from None


def read_yaml(path: Path, text: str, read: Callable[[str, type], Any]) -> Any:
    """Parse the text of a file with `read`, a function of PyYAML.

    Raises:
        UsageError: the file is not YAML.
        ValueError: it is not text, or has a value that does not exist, such as the 31st of June.
    """
    try:
        return read(text, yaml.SafeLoader)
    except yaml.reader.ReaderError:
        raise ValueError("not a text file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"{mark.line + 1}:" if mark else ""
        why = getattr(error, "problem", None) or error
        raise UsageError(f"{path}:{line} not YAML: {why}") from None
    except (LookupError, AttributeError):  # PyYAML's own, as for `!!bool maybe`
        raise UsageError(f"{path}: not YAML: a value does not match its tag") from None
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply") from None


class SettingsFile(NamedTuple):
    """A YAML file of `name: value` lines."""

    text: str
    settings: Sequence[RawSetting]
    problems: Sequence[str]  # a line for each wrong key


@cache  # a pipe can be read only once, and the runs of a sweep have the same file
def read_file(path: Path, known_names: Collection[str]) -> SettingsFile:
    """Read a file of settings.

    Values stay text, so that `lr: 1e-4` and `lower_case: yes` mean the same as the flags.

    Raises:
        UsageError: the file cannot be read, or is not a file of settings.
    """
    try:
        text = text_of(path)
        root = read_yaml(path, text, yaml.compose)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"--config {path}: {error}") from None
    if root is None:
        return SettingsFile(text, (), ())
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}: expected lines of 'name: value'")
    if ACCELERATE_KEYS & {str(key.value) for key, _ in root.value}:
        raise UsageError(
            f"--config {path} has accelerate's settings, not Muster's{TIP}{ACCELERATE_REMEDY}"
        )
    problems: list[str] = []
    entries = (
        (key.value, f"{path}:{key.start_mark.line + 1}: ", _text_of_node(value))
        for key, value in root.value
    )
    return SettingsFile(text, settings_in(entries, known_names, problems, "file"), problems)


def _text_of_node(node: yaml.Node) -> str | None:
    """The text of one value; None: there are several values."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    return "null" if node.tag == "tag:yaml.org,2002:null" else str(node.value)


def settings_in(
    entries: Iterable[tuple[Any, str, str | None]],
    known_names: Collection[str],
    problems: list[str],
    source: Source,
) -> list[RawSetting]:
    """The settings of a file; each wrong one adds a line to `problems`.

    An entry is a key, its place, and the text of its value; None: it has several values.
    """
    settings: dict[str, RawSetting] = {}
    for key, where, text in entries:
        name = str(key).replace("-", "_")
        if name in REMOVED and text == REMOVED_DEFAULTS.get(name, "null"):
            continue
        if name not in known_names:
            hint = hint_for(name, known_names, problems)
            problems.append(f"{where}unknown key {key!r}{hint}")
        elif name in settings:
            problems.append(f"{where}{name} is given twice")
        elif text is None:
            several = "a list or a table" if source == "cluster" else "a list or a mapping"
            problems.append(f"{where}{name}: expected one value, got {several}")
        else:
            settings[name] = RawSetting(name, text, where, source)
    return list(settings.values())
