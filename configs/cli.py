"""Flags override the file, which overrides the defaults; every dataclass field is a flag."""

import re
import shlex
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from configs import clusters
from configs.foreign_flags import advice
from configs.help_page import kind_of, parser_of
from configs.raw import (
    REMOVED,
    REMOVED_VALUES,
    SWITCH,
    RawSetting,
    SettingsFile,
    alike,
    read_file,
    with_home,
)
from configs.settings.fields import add_new, by_name, named_in
from configs.settings.launch import LaunchConfig, ProgramConfig, whole_number
from configs.settings.remote import LoginConfig, SlurmConfig, SshConfig
from configs.settings.train import MEASUREMENT_SETTINGS, TWO_SIZES, BenchConfig, TrainConfig
from muster.checkout import CHECKOUT
from muster.errors import UsageError, refuse
from muster.errors import run as run
from muster.terminal import TIP

# Settings of one call: repeating a run from its file must not claim its folder again.
NOT_REPEATED = frozenset(
    {"run_id", "overwrite", "redirect", "dry_run", "detach", "setup", "env", "json", "on"}
)
# A file may hold settings of all of these; a recipe serves the launcher and the worker.
FILE_CLASSES = (TrainConfig, LaunchConfig, ProgramConfig, SshConfig, SlurmConfig, BenchConfig)
IN_FILES = by_name(*FILE_CLASSES)
FILE_KEYS = frozenset(IN_FILES) - NOT_REPEATED
LONG_DASHES = "\u2013\u2014"  # word processors turn two hyphens into them
SHORT = re.compile(r"(-[A-Za-z])(\d.*)")  # a flag and its value in one word, as in sbatch's -N2
Fields = Mapping[str, Field[Any]]  # by name
Instances = tuple[tuple[Any, ...], list[str]]  # one of each class, and a line for each problem
# The settings that `muster.toml` may hold for a cluster.
CLUSTER_SETTINGS = by_name(LaunchConfig, SshConfig, SlurmConfig, ProgramConfig, LoginConfig)
CLUSTER_SETTINGS = {
    name: item for name, item in CLUSTER_SETTINGS.items() if name not in NOT_REPEATED
}


@dataclass(frozen=True)
class Parsed:
    """A command line, with the file of --config or the task's recipe, and the cluster of --on."""

    values: Mapping[str, Any]  # of all settings; a default replaces a wrong value
    # for each value that is not a default; includes settings that are read elsewhere
    origin: Mapping[str, RawSetting]
    problems: Sequence[str]
    piped: str | None  # the text of a --config that is a pipe, which cannot be read again

    @property
    def explicit(self) -> list[RawSetting]:
        """The settings that were given for this call: on its command line, or in its --config."""
        return [each for each in self.origin.values() if each.source in ("command line", "file")]

    @property
    def flags(self) -> list[RawSetting]:
        """The settings that were given on the command line."""
        return [each for each in self.origin.values() if each.source == "command line"]

    def instances(self, classes: Sequence[type]) -> Instances:
        """One instance of each of `classes`, and a line for each problem."""
        problems = [*self.problems]
        return tuple(_instance(cls, self.values, problems) for cls in classes), problems


def parse(classes: Sequence[type], argv: Sequence[str], **page: Any) -> tuple[Any, ...]:
    """Make one instance of each of `classes`; the other arguments are as for `parsed`.

    Raises:
        UsageError: unknown or wrong flags, keys or values; it lists every problem.
        SystemExit: 0, after --help.
    """
    instances, problems = parsed(classes, argv, **page).instances(classes)
    refuse(problems)
    return instances


def parsed(
    classes: Sequence[type],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    first: Collection[str] = (),
    example: str = "",
    used: Sequence[type] | None = None,
) -> Parsed:
    """Read `argv`, whose flags are the fields of `classes`, and the files that it names.

    `first`: the settings that --help shows; --help-all shows all. `example`: a command for --help.
    `used`: the classes that have a use in this call (default: all); others are not suggested.

    Raises:
        UsageError: a file cannot be read; it lists every problem.
        SystemExit: 0, after --help.
    """
    used = classes if used is None else used
    settings = by_name(*classes)
    typed, wrong_words = words_of(classes, argv, used)
    last = {setting.name: setting.text for setting in typed}
    file = SettingsFile("", (), ())
    piped = None
    recipe = _recipe_of(last.get("task", TrainConfig.task))
    if "config" in last:
        path = Path(with_home(last["config"]))
        file = read_file(path, FILE_KEYS)
        piped = None if path.is_file() else file.text
    elif any(issubclass(cls, TrainConfig) for cls in used) and recipe.exists():
        file = read_file(recipe, FILE_KEYS)
        file = file._replace(settings=[each._replace(source="recipe") for each in file.settings])
    levels = [(file.settings, file.problems), (cluster(last.get("on")), ()), (typed, wrong_words)]
    asks_help = bool(last.keys() & {"help", "help_all"})
    values: dict[str, Any] = {name: item.default for name, item in settings.items()}
    origin: dict[str, RawSetting] = {}
    problems: list[str] = []
    for level, wrong in levels[:-1] if asks_help else levels:
        known = [setting for setting in level if setting.name in settings]
        problems += wrong
        values |= {
            name: values[name] + value if "adds" in settings[name].metadata else value
            for name, value in _values(known, settings, problems).items()
        }
        problems += _replace_batch_size(values, known)
        for setting in level:
            origin.pop(setting.name, None)  # in the order in which they were given
            origin[setting.name] = setting
    if asks_help:
        names = first if first and "help_all" not in last else settings
        parser_of(classes, values, prog, description, names, example).print_help()
        sys.exit(0)
    return Parsed(values, origin, problems, piped)


@cache  # the runs of a sweep have the same cluster
def cluster(name: str | None) -> Sequence[RawSetting]:
    """The settings of a cluster in muster.toml.

    Raises:
        UsageError: there is no such cluster, or a file is wrong; it lists every problem.
    """
    return () if name is None else clusters.settings_of(name, CLUSTER_SETTINGS)


def dashed(name: str) -> str:
    return name.replace("_", "-")


def dashed_flags(words: Sequence[str]) -> list[str]:
    """`words`, with dashes for the underscores in each flag."""
    return [re.sub("^--[^=]+", lambda match: dashed(match[0]), word) for word in words]


def _is_flag(word: str, flags: Mapping[str, str]) -> bool:
    return word.startswith("--") or dashed(word.partition("=")[0]) in flags  # -1e-4 is not


def _is_program(word: str) -> bool:
    """Whether a word begins a program, before which the user has forgotten the `--`."""
    return word.endswith(".py") or re.fullmatch(r"python[\d.]*", Path(word).name) is not None


def _drop_values(rest: list[str], flags: Mapping[str, str]) -> None:
    """Drop the values of a wrong word: they are not separate mistakes."""
    while rest and not _is_flag(rest[0], flags) and not _is_program(rest[0]):
        rest.pop(0)


def _spellings(classes: Sequence[type]) -> tuple[dict[str, str], set[str]]:
    """The setting's name for each spelling of a flag; and the names of the switches."""
    flags = {"--help": "help", "-h": "help", "--help-all": "help_all", "--config": "config"}
    switches = {"help", "help_all"}
    for item in by_name(*classes).values():
        spellings = [f"--{item.name}", *item.metadata.get("aliases", ())]
        if item.type is bool:
            switches.add(item.name)
            spellings.append(f"--no-{item.name}")
        flags |= dict.fromkeys(map(dashed, spellings), item.name)
    return flags, switches


def words_of(
    classes: Sequence[type], argv: Sequence[str], suggest: Sequence[type] = ()
) -> tuple[list[RawSetting], list[str]]:
    """The settings in `argv` alone, unchecked, and a line for each wrong word in it.

    Flags have dashes; underscores mean the same. An abbreviated flag is unknown, as a misspelt one
    is; a line about it suggests a flag of the classes `suggest`. Of several settings with the same
    name, the last one counts.
    """
    flags, switches = _spellings(classes)
    settings: list[RawSetting] = []
    problems: list[str] = []
    rest = list(argv)
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        flag = dashed(word)
        name = flags.get(flag)
        if not flag.startswith("-"):
            problems.append(_no_flag(word, rest, takes_program=ProgramConfig in classes))
            if ProgramConfig in classes and _is_program(word):
                break  # the words after it are the program's
            _drop_values(rest, flags)
        elif name is None:
            if short := SHORT.fullmatch(word):
                flag, text = short.groups()
            elif not equals and rest and not (_is_flag(rest[0], flags) or _is_program(rest[0])):
                text = rest.pop(0)
            problems.append(_unknown(word, flag, text, classes, suggest))
        elif name in switches and not equals:
            settings.append(RawSetting(name, "false" if flag.startswith("--no-") else "true"))
        elif flag.startswith("--no-"):
            problems.append(f"{flag} takes no value (got {text!r})")
        elif equals and text:
            settings.append(RawSetting(name, text))
        elif not equals and rest and not _is_flag(rest[0], flags):
            settings.append(RawSetting(name, rest.pop(0)))
        else:
            problems.append(f"{flag} needs a value")
    return settings, problems


def _no_flag(word: str, rest: Sequence[str], *, takes_program: bool) -> str:
    """A line about a word that is neither a flag nor its value, with `rest` after it."""
    plain = word.lstrip(LONG_DASHES)
    if plain != word:
        return f"{word} begins with a long dash\ntip: type two hyphens: --{plain}"
    program = ["train.py"]
    if _is_program(word):
        program = [word] if word.endswith(".py") else [word, *rest[:1]]
    meant = f"{TIP}put your own program after --: -- {shlex.join(program)}"
    hint = meant if takes_program else ""
    return f"unknown argument {word!r}; settings are given as --flag VALUE{hint}"


def _unknown(
    word: str, flag: str, text: str, classes: Sequence[type], suggest: Sequence[type]
) -> str:
    """A line about an unknown flag that suggests another; `text`: its value, if any."""
    flags, _ = _spellings(classes)
    see = "see --help"
    if ProgramConfig in suggest and TrainConfig not in suggest:
        see += "; a flag of your program goes after the program's name"
    names = {*by_name(*suggest, ProgramConfig), "help", "help_all", "config"}
    suggested = [spelling for spelling, name in flags.items() if name in names]
    meant = REMOVED.get(flag.lstrip("-").removeprefix("no-").replace("-", "_"), "")
    meant = meant or (f"did you mean {flag} {text}?" if flag in flags else "")
    whole = f"--{flag.lstrip('-')}"  # `-nodes`
    meant = meant or (f"did you mean {whole}?" if whole in flags else "")
    if LaunchConfig in classes:
        meant = meant or advice(flag.lstrip("-"), text, trains=TrainConfig in suggest)
    return f"unknown flag {word}{TIP}{meant or alike(flag, suggested) or see}"


def _recipe_of(task: str) -> Path:
    """The file that is read without --config, if it exists."""
    return CHECKOUT / "configs" / f"{Path(task).name}.yaml"


def to_argv(config: TrainConfig) -> list[str]:
    """The flags that reproduce `config`, given the recipe of its task: the inverse of `parse`."""
    task = f"--task={config.task}"
    (recipe,) = parse([type(config)], [task], prog="", description="")
    return [task, *changed(config, recipe)]


def changed(config: Any, base: Any) -> list[str]:
    """The flags that turn `base` into `config`."""
    names = [item.name for item in fields(config) if item.name not in _replaced(config)]
    pairs = ((name, getattr(config, name)) for name in names)
    return [word(name, value) for name, value in pairs if value != getattr(base, name)]


def _replaced(config: Any) -> set[str]:
    """Settings of `config` that another setting replaces."""
    return {"batch_size"} if getattr(config, "local_batch_size", None) is not None else set()


def for_bench(argv: Sequence[str]) -> list[str]:
    """The flags of a training that the benchmark of collectives uses, too."""
    unused = by_name(TrainConfig).keys() - MEASUREMENT_SETTINGS
    typed, _ = words_of(FILE_CLASSES, argv)
    return [word(setting.name, setting.text) for setting in typed if setting.name not in unused]


def to_yaml(*configs: Any) -> str:
    """All settings of `configs` as a file that --config reads back."""
    values = {
        item.name: _yaml_value(item.name, getattr(config, item.name))
        for config in configs
        for item in fields(config)
        if item.name not in NOT_REPEATED | _replaced(config)
    }
    return str(yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True))


class _Dumper(yaml.SafeDumper):
    """Quotes Unicode's own line ends, which PyYAML writes as they are but reads as blanks."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        if any(end in data for end in "\x85\u2028\u2029"):
            return self.represent_scalar("tag:yaml.org,2002:str", data, style='"')
        return super().represent_str(data)


_Dumper.add_representer(str, _Dumper.represent_str)


def _yaml_value(name: str, value: Any) -> Any:
    """A setting's value as written in YAML."""
    return value if value is None or isinstance(value, int | float) else text_of(name, value)


def _values(raw: Iterable[RawSetting], settings: Fields, problems: list[str]) -> dict[str, Any]:
    """The values of the settings `raw`; each value of a wrong type adds a line to `problems`."""
    values: dict[str, Any] = {}
    for setting in raw:
        item = settings[setting.name]
        try:
            value = _value(item, setting.text)
        except (ValueError, KeyError):
            problems.append(_wrong_form(setting, item))
            continue
        adds = "repeats" in item.metadata and setting.name in values and not setting.where
        values[setting.name] = values[setting.name] + value if adds else value
    return values


def _wrong_form(raw: RawSetting, item: Field[Any]) -> str:
    """A line about a setting whose text is no value of its type."""
    if "form" in item.metadata:
        return f"{raw.spelt} {raw.text!r}: {item.metadata['form']}"
    removed = REMOVED_VALUES.get((raw.name, raw.text))
    problem = f"{raw.spelt}: expected {kind_of(item.type)}, got {raw.text!r}"
    return f"{problem}{TIP}{removed}" if removed else problem


def _replace_batch_size(values: dict[str, Any], level: Iterable[RawSetting]) -> list[str]:
    """Let a batch size in `level` replace that of earlier levels; or return a problem."""
    places = {setting.name: setting.where for setting in level if setting.text != "null"}
    if {"batch_size", "local_batch_size"} <= places.keys():
        return [places["batch_size"] + TWO_SIZES]
    if "batch_size" in places:
        values["local_batch_size"] = None
    elif "local_batch_size" in places:
        values["batch_size"] = TrainConfig.batch_size
    return []


def _value(item: Field[Any], text: str) -> Any:
    """Convert `text` to the value of a setting: a tuple for a setting with several values.

    Raises:
        ValueError, KeyError: it is not such a value.
    """
    is_union = get_origin(item.type) in (Union, UnionType)
    kinds = get_args(item.type) if is_union else (item.type,)
    if type(None) in kinds and text == "null":
        return None
    hint = kinds[0]
    is_list = get_origin(hint) is tuple
    between = item.metadata.get("between")
    parts = text.split(between) if is_list and between else [text]
    if hint is Path or "path" in item.metadata:
        parts = [with_home(part) for part in parts]
        if any(part.startswith("~") for part in parts):  # an unknown user, or one without a home
            raise ValueError(text)
    if not is_list:
        return _single(hint, parts[0])
    if "repeats" in item.metadata:
        parts = [part for part in parts if part]
    return tuple(_single(get_args(hint)[0], part) for part in parts)


def _single(hint: Any, text: str) -> Any:
    """`text` as one value of the type `hint`; raises as `_value` does."""
    if hint is bool:
        return SWITCH[text.lower()]
    if get_origin(hint) is Literal:
        words = get_args(hint)
        return words[words.index(text)]
    if hint is int:
        return whole_number(text)
    return getattr(hint, "parse", hint)(text)


def word(name: str, value: Any) -> str:
    """`--name=value`, in the form that the parser reads."""
    if isinstance(value, bool):
        return ("--" if value else "--no-") + dashed(name)
    return f"--{dashed(name)}={text_of(name, value)}"


def text_of(name: str, value: Any) -> str:
    """A setting's value as written in flags and files; several values are joined in one text."""
    if value is None:
        return "null"
    if type(value) is not tuple:
        return str(value)
    return str(IN_FILES[name].metadata.get("between", "")).join(map(str, value))


def _instance(cls: type, values: Mapping[str, Any], problems: list[str]) -> Any:
    """An instance of `cls`; a setting with a problem has its default."""
    own = {item.name: values[item.name] for item in fields(cls)}
    try:
        return cls(**own)
    except UsageError as error:
        lines = error.problems
    add_new(problems, lines)
    named = named_in(lines)
    wrong = {name for name in own if f"--{dashed(name)}" in named}
    try:
        return cls(**{name: value for name, value in own.items() if name not in wrong})
    except UsageError:
        return cls()
