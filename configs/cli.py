"""Flags override the file, the file overrides the defaults; every dataclass field is a flag."""

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from configs.entry_point import run as run
from configs.plugins import REPOSITORY
from configs.raw import GONE_VALUES, SWITCH, Given, dashed, from_argv, from_file, joined
from configs.settings.bench import OF_MEASUREMENT, BenchConfig
from configs.settings.launch import LaunchConfig, Nodes, SlurmConfig, SshConfig
from configs.settings.program import ProgramConfig
from configs.settings.train import TWO_SIZES, TrainConfig
from muster.errors import UsageError, refuse

# Of this invocation alone: repeating a run from its file must not claim its folder again.
NOT_REPEATED = frozenset({"run_id", "overwrite", "redirect", "dry_run", "detach", "setup", "env"})
# A file may hold all of them, whichever command reads it: a recipe serves launcher and worker.
FILE_CLASSES = (TrainConfig, LaunchConfig, ProgramConfig, SshConfig, SlurmConfig, BenchConfig)
FILE_KEYS = frozenset(item.name for cls in FILE_CLASSES for item in fields(cls)) - NOT_REPEATED


def parse(
    classes: Sequence[type],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    first: Collection[str] = (),
    made: Sequence[type] | None = None,
) -> tuple[Any, ...]:
    """One instance of each of `classes`, from `argv` and the YAML file that --config names.

    `first`: the settings that --help shows, where --help-all shows all of them. `made`: which of
    the classes an instance is wanted of, where it is not all of them.

    Raises:
        UsageError: unknown or wrong flags, keys or values; every problem found at once.
        SystemExit: 0, after --help.
    """
    known = {item.name: item for cls in classes for item in fields(cls)}
    hints = {name: hint for cls in classes for name, hint in get_type_hints(cls).items()}
    raw, problems = _typed_in(classes, argv, has_more=bool(first))
    last = {one.name: one.text for one in raw}
    shown = first if first and "help_all" not in last else known
    values = {name: item.default for name, item in known.items()}
    made = classes if made is None else made
    path = recipe_of(last.get("task")) if TrainConfig in made else None
    path = Path(last["config"]) if "config" in last else path
    if path is not None:
        from_path, file_problems = from_file(path, FILE_KEYS)
        wanted = [one for one in from_path if one.name in known]
        values |= _values(wanted, hints, file_problems)
        file_problems += _one_size(values, from_path, f"{path}: ")
        problems = file_problems + problems
    if last.keys() & {"help", "help_all"}:
        _parser(classes, hints, values, prog, description, shown).print_help()
        sys.exit(0)
    separators = {name: item.metadata.get("repeats") for name, item in known.items()}
    raw = joined([one for one in raw if one.name in known], separators)
    values |= _values(raw, hints, problems)
    refuse([*problems, *_one_size(values, raw)])
    return _build(made, values)


def given(classes: Sequence[type], argv: Sequence[str]) -> list[Given]:
    """What `argv` sets, and the file that its --config names, whatever the value is."""
    raw, _ = _typed_in(classes, argv)
    paths = [Path(one.text) for one in raw if one.name == "config"][-1:]
    return [one for path in paths for one in from_file(path, FILE_KEYS)[0]] + raw


def _typed_in(
    classes: Sequence[type], argv: Sequence[str], *, has_more: bool = True
) -> tuple[list[Given], list[str]]:
    """What `argv` sets, and a line for each of its words that are wrong."""
    flags = {"--help": "help", "-h": "help", "--config": "config"}
    flags |= {"--help-all": "help_all"} if has_more else {}
    switches = {"help", "help_all"}
    for cls in classes:
        switches |= {name for name, hint in get_type_hints(cls).items() if hint is bool}
        for item in fields(cls):
            spellings = [f"--{item.name}", *item.metadata.get("aliases", ())]
            spellings += [f"--no-{item.name}"] if item.name in switches else []
            flags |= dict.fromkeys(map(dashed, spellings), item.name)
    program = "; a program of your own follows after --: -- train.py"
    return from_argv(argv, flags, switches, program if ProgramConfig in classes else "")


def recipe_of(task: str | None) -> Path | None:
    """The file that is read where --config names none: configs/TASK.yaml, if there is one."""
    path = REPOSITORY / "configs" / f"{Path(task or TrainConfig.task).name}.yaml"
    return path if path.exists() else None


def to_argv(config: TrainConfig) -> list[str]:
    """The flags that make `config` again, given the recipe of its task: `parse` undoes it."""
    task = f"--task={config.task}"
    (recipe,) = parse([TrainConfig], [task], prog="", description="")
    argv = [task]
    for item in fields(config):
        value = getattr(config, item.name)
        if value != getattr(recipe, item.name) and item.name not in _void(config):
            argv.append(_word(item.name, value))
    return argv


def _void(config: Any) -> set[str]:
    """What another setting of `config` has taken the place of."""
    return {"batch_size"} if getattr(config, "local_batch_size", None) is not None else set()


def program_argv(program: str, train: TrainConfig, bench: BenchConfig) -> list[str]:
    """The flags of `program`: those that make `train` again, and of the bench its own."""
    if program != "bench_collectives":
        return to_argv(train)
    own = [
        _word(item.name, getattr(bench, item.name))
        for item in fields(bench)
        if getattr(bench, item.name) != item.default
    ]
    return [*for_bench(to_argv(replace(train, task=TrainConfig.task))), *own]


def for_bench(argv: Sequence[str]) -> list[str]:
    """Of the flags of a run of our trainer those that its bench of collectives heeds, too."""
    typed, _ = _typed_in(FILE_CLASSES, argv)
    without_use = {item.name for item in fields(TrainConfig)} - OF_MEASUREMENT
    return [f"--{dashed(one.name)}={one.text}" for one in typed if one.name not in without_use]


def to_yaml(*configs: Any) -> str:
    """All settings of `configs` as a file that --config reads back."""
    values = {
        key: str(value) if isinstance(value, Path | Nodes) else value
        for config in configs
        for key, value in asdict(config).items()
        if key not in NOT_REPEATED | _void(config)
    }
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


class _Help(HelpFormatter):
    """The default where it says something; the type is in the metavar already, and that once."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _format_action_invocation(self, action: Action) -> str:
        metavar = f" {action.metavar}" if action.nargs != 0 and action.metavar else ""
        return ", ".join(action.option_strings) + metavar

    def _get_help_string(self, action: Action) -> str:
        text = action.help or ""
        plain = action.default in (None, "") or isinstance(action.default, bool)
        return text if plain or action.nargs == 0 else f"{text} (default: {action.default})"


def _parser(
    classes: Sequence[type],
    hints: Mapping[str, Any],
    values: Mapping[str, Any],
    prog: str,
    description: str,
    shown: Collection[str],
) -> ArgumentParser:
    """What --help is printed by; `values`: the defaults that it tells of."""
    usage = f"{prog} [--config FILE] [--flag VALUE ...]"
    parser = ArgumentParser(prog, usage, description, formatter_class=_Help)
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    added = set[str]()
    for cls in classes:
        own = [item for item in fields(cls) if item.name not in added]
        added |= {item.name for item in own}
        is_whole = all(item.name in shown for item in own)
        about = (cls.__doc__ or "").split("\n")[0].removesuffix(".")
        group = parser.add_argument_group(about if is_whole else "Of every run")
        for item in own:
            aliases = item.metadata.get("aliases", ())
            options = ["--" + dashed(item.name), *(one for one in aliases if one[1] != "-")]
            text = item.metadata["help"] if item.name in shown else SUPPRESS
            if hints[item.name] is bool:
                options.append("--no-" + dashed(item.name))
                group.add_argument(*options, action="store_true", help=text)
            else:
                kind, default = _kind(hints[item.name]), values[item.name]
                group.add_argument(*options, metavar=kind, default=default, help=text)
    return parser


def _values(raw: Iterable[Given], hints: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The values that `raw` makes; each one of the wrong type adds a line to `problems`."""
    values = {}
    for one in raw:
        try:
            values[one.name] = _value(hints[one.name], one.text)
        except (ValueError, KeyError):
            problems.append(_wrong(one, _kind(hints[one.name])))
    return values


def _one_size(values: dict[str, Any], level: Iterable[Given], where: str = "") -> list[str]:
    """Have the batch's size that `level` gives, if any, be the one that counts; or a problem."""
    names = {one.name for one in level if one.text != "null"}
    if {"batch_size", "local_batch_size"} <= names:
        return [where + TWO_SIZES]
    if "batch_size" in names and "local_batch_size" in values:
        values["local_batch_size"] = None
    elif "local_batch_size" in names:
        values["batch_size"] = TrainConfig.batch_size
    return []


def _value(hint: Any, text: str) -> Any:
    """What `text` is, where such a value is asked for.

    Raises:
        ValueError, KeyError: it is none.
    """
    kinds = get_args(hint) or (hint,)
    if type(None) in kinds and text == "null":
        return None
    if hint is bool:
        return SWITCH[text.lower()]
    if get_origin(hint) is Literal:
        return kinds[kinds.index(text)]
    if Path in kinds:
        try:  # a shell does not expand --logs-dir=~/runs, and in a file nothing else would
            return Path(text).expanduser()
        except RuntimeError:  # `~` of a user who is not known, or who has no home
            raise ValueError(text) from None
    if int in kinds and not re.fullmatch(r"[+-]?\d+", text, re.ASCII):
        raise ValueError(text)
    return kinds[0](text)


def _wrong(one: Given, kind: str) -> str:
    name = one.name if one.where else "--" + dashed(one.name)
    gone = GONE_VALUES.get((one.name, one.text))
    return f"{one.where}{name}: expected {kind}, got {one.text!r}{f'; {gone}' if gone else ''}"


def _word(name: str, value: Any) -> str:
    """`--name=value`, as the parser reads it."""
    if isinstance(value, bool):
        return ("--" if value else "--no-") + dashed(name)
    return f"--{dashed(name)}={'null' if value is None else value}"


def _build(classes: Sequence[type], values: Mapping[str, Any]) -> tuple[Any, ...]:
    problems, built = [], []
    for cls in classes:
        try:
            built.append(cls(**{item.name: values[item.name] for item in fields(cls)}))
        except UsageError as error:
            problems += str(error).splitlines()
    refuse(problems)
    return tuple(built)


def _kind(hint: Any) -> str:
    """What a value of this type looks like, for --help and for errors."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds = [_kind(arg) for arg in get_args(hint) if arg is not type(None)]
    return " or ".join(kinds) or {
        Nodes: Nodes.KIND,
        bool: "true or false",
        int: "INTEGER",
        float: "NUMBER",
        str: "TEXT",
    }.get(hint, "PATH")
