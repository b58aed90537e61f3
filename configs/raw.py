"""Settings as text, before they get their types: those of a file, and values that were removed."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from configs.settings.fields import flag
from muster.errors import UsageError, closest

SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}

# Limits of a file of settings, which a person writes.
MOST_BYTES = 200_000
DEEPEST = 20
MOST_KEYS = 10_000
DELETING = frozenset(("overwrite", "no-overwrite"))  # remove files
# The file that `accelerate config` writes: its keys, and what to use in its place.
ACCELERATE_KEYS = {"compute_environment", "distributed_type"}
OF_ACCELERATE = (
    "for accelerate's num_machines use --nodes, for its num_processes --nproc-per-node (the number "
    "on each node), and for its mixed_precision --env ACCELERATE_MIXED_PRECISION=VALUE"
)
# Values that a release had, and what to use instead.
REMOVED_VALUES = {("bucket_mb", "auto"): "sizes are no longer searched for; leave it out"}
# Settings that a release had, and what to use instead.
REMOVED = {"compress_share": "it was topk's, which was removed; powersgd has compress_rank"}


class Given(NamedTuple):
    """One setting as text; a switch without a value has the text true or false."""

    name: str  # of the field
    text: str
    where: str = ""  # "FILE:LINE: " for one from a file

    @property
    def spelt(self) -> str:
        """As it was given, for a message about it."""
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
    """The end of a line about an unknown name: a similar name, or else all known names.

    It does not list them again if one of the earlier `problems` does.
    """
    if similar := alike(name, known_names):
        return f"; {similar}"
    known = f"; known: {', '.join(sorted(known_names))}"
    return "" if any(problem.endswith(known) for problem in problems) else known


def with_home(text: str) -> str:
    """A path with the home folder in place of its `~`; unchanged if the home is unknown.

    Shells do not expand the `~` in `--logs-dir=~/runs`, and nothing expands it in files.
    """
    return os.path.expanduser(text)  # noqa: PTH111 (Path raises without a home)


class ShallowLoader(yaml.SafeLoader):
    """PyYAML's loader for what people write by hand.

    It refuses deep nesting at once: the time to read it grows with more than the square of the
    depth. It refuses blocks that merge others too often: they grow with each merge.
    """

    def flatten_mapping(self, node: Any) -> None:
        super().flatten_mapping(node)
        if len(node.value) > MOST_KEYS:
            raise yaml.constructor.ConstructorError(
                None, None, f"more than {MOST_KEYS} merged keys", node.start_mark
            )

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (LookupError, AttributeError):  # PyYAML's own, on `!!bool maybe`
            raise yaml.constructor.ConstructorError(
                None, None, f"no value of {node.tag.rpartition(':')[2]}", node.start_mark
            ) from None

    def fetch_flow_collection_start(self, TokenClass: Any) -> None:  # noqa: N803 (PyYAML's name)
        self._refuse_depth(self.flow_level)
        super().fetch_flow_collection_start(TokenClass)

    def add_indent(self, column: int) -> bool:
        self._refuse_depth(len(self.indents))
        return bool(super().add_indent(column))

    def _refuse_depth(self, depth: int) -> None:
        if depth >= DEEPEST:
            raise yaml.scanner.ScannerError(None, None, "nested too deeply", self.get_mark())


def text_of(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file that a person has written, on whatever system.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text in UTF-8, or too long for one that was written by hand.
    """
    with path.open("rb") as file:  # perhaps a pipe, which has no size
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"longer than {most_bytes} bytes, so it is another kind of file")
    if b"\0" in data:
        raise ValueError("not a text file")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"not a text in UTF-8, in line {line}") from None


def not_yaml(path: Path, error: yaml.YAMLError) -> str:
    """`FILE:LINE: not YAML: ...` for an error of PyYAML."""
    mark = getattr(error, "problem_mark", None)
    line = f"{mark.line + 1}:" if mark else ""
    return f"{path}:{line} not YAML: {getattr(error, 'problem', None) or error}"


def from_file(path: Path, known_names: Collection[str]) -> tuple[list[Given], list[str]]:
    """The settings in a YAML file of `name: value` lines, and one line for each wrong key.

    Values stay text, so that `lr: 1e-4` and `lower_case: yes` mean the same as the flags.

    Raises:
        UsageError: the file cannot be read, or is not such a file.
    """
    try:
        root = yaml.compose(text_of(path), Loader=ShallowLoader)
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except yaml.reader.ReaderError:
        raise UsageError(f"--config {path}: not a text file") from None
    except ValueError as error:
        raise UsageError(f"--config {path}: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(not_yaml(path, error)) from None
    if root is None:
        return [], []
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{path}: expected lines of 'name: value'")
    if ACCELERATE_KEYS & {str(key.value) for key, _ in root.value}:
        raise UsageError(f"--config {path} is a file of accelerate, not of Muster; {OF_ACCELERATE}")
    settings: list[Given] = []
    problems: list[str] = []
    seen: set[str] = set()
    for key, value in root.value:
        name = str(key.value).replace("-", "_")
        where = f"{path}:{key.start_mark.line + 1}: "
        if name not in known_names:
            removed = f"; {REMOVED[name]}" if name in REMOVED else ""
            hint = removed or hint_for(name, known_names, problems)
            problems.append(f"{where}unknown key {key.value!r}{hint}")
        elif name in seen:
            problems.append(f"{where}{name} is given twice")
        elif not isinstance(value, yaml.ScalarNode):
            problems.append(f"{where}{name}: expected one value, got a list or a mapping")
        else:
            empty = value.tag == "tag:yaml.org,2002:null"
            settings.append(Given(name, "null" if empty else value.value, where))
        seen.add(name)
    return settings, problems
