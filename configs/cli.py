"""Flags override the file, the file overrides the defaults; every dataclass field is a flag."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, asdict, fields
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentParser

from configs.errors import MusterError, UsageError, refuse
from configs.plugins import REPOSITORY
from configs.schema import LaunchConfig, TrainConfig

# Of this invocation alone: repeating a run from its file must not claim its folder again.
NOT_REPEATED = frozenset({"run_id", "overwrite", "redirect", "dry_run"})
# A file may hold all of them, whichever command reads it: a recipe serves launcher and worker.
FILE_CLASSES = (TrainConfig, LaunchConfig)


def parse(
    classes: Sequence[type], argv: Sequence[str], *, prog: str, description: str
) -> tuple[Any, ...]:
    """One instance of each of `classes`, from `argv` and the YAML file that --config names.

    Raises:
        UsageError: an unknown or wrong flag, key or value; every problem found at once.
        SystemExit: 0, after --help.
    """
    parser = _Parser(
        prog=prog,
        usage=f"{prog} [--config FILE] [--flag VALUE ...]",
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=str, metavar="FILE", help="YAML file of settings")
    all_hints: dict[str, Any] = {"config": str}
    by_flag = {"--help": "--help", "-h": "--help", "--config": "--config"}
    for cls in classes:
        group = parser.add_argument_group(cls.__name__, (cls.__doc__ or "").split("\n")[0])
        hints = get_type_hints(cls)
        all_hints |= hints
        for item in fields(cls):
            _add_flag(group, item, hints[item.name])
            by_flag |= dict.fromkeys(_spellings(item), "--" + _dashed(item.name))
            if hints[item.name] is bool:
                by_flag["--no-" + _dashed(item.name)] = "--no-" + _dashed(item.name)
    argv = _normalise(argv, by_flag)
    given = _value_of("--config", argv)
    path = Path(given) if given is not None else recipe_of(_value_of("--task", argv))
    if path is not None:
        parser.set_defaults(_read_file(path, classes))
    values = vars(_checked(lambda: parser.parse_args(argv), all_hints))
    return _build(classes, values)


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
        if value == getattr(recipe, item.name):
            continue
        flag = "--" + _dashed(item.name)
        if isinstance(value, bool):
            argv.append(flag if value else "--no-" + _dashed(item.name))
        else:
            argv.append(f"{flag}={'null' if value is None else value}")
    return argv


def to_yaml(*configs: Any) -> str:
    """All settings of `configs` as a file that --config reads back."""
    values = {
        key: str(value) if isinstance(value, Path) else value
        for config in configs
        for key, value in asdict(config).items()
        if key not in NOT_REPEATED
    }
    return str(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))


def run(main: Callable[[], int]) -> NoReturn:
    """End the process with `main`'s code; an error a user can act on becomes one clear message."""
    try:
        sys.exit(main())
    except MusterError as error:
        for line in str(error).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


class _Parser(ArgumentParser):
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        raise ValueError(message)  # `_checked` says it in our words


def _build(classes: Sequence[type], values: Mapping[str, Any]) -> tuple[Any, ...]:
    problems, built = [], []
    for cls in classes:
        try:
            built.append(cls(**{item.name: values[item.name] for item in fields(cls)}))
        except UsageError as error:
            problems += str(error).splitlines()
    refuse(problems)
    return tuple(built)


def _add_flag(group: Any, item: Field[Any], hint: Any) -> None:
    options = ["--" + _dashed(item.name)]
    options += [alias for alias in item.metadata.get("aliases", ()) if not alias.startswith("--")]
    text = item.metadata["help"]
    if hint is bool:
        action = ActionYesNo(no_prefix="no-")
        group.add_argument(*options, action=action, default=item.default, help=text)
    else:
        group.add_argument(
            *options, type=hint, default=item.default, help=text, metavar=_kind(hint)
        )


def _read_file(path: Path, classes: Sequence[type]) -> dict[str, Any]:
    """The values that the file gives to the fields of `classes`, typed."""
    try:
        text = path.read_text(encoding="utf-8")
        keys = yaml.safe_load(text) or {}
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {path}: not a text file") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise UsageError(f"{path}:{line} not YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(keys, dict):
        raise UsageError(f"{path}: expected lines of 'name: value'")
    known = {item.name for cls in FILE_CLASSES for item in fields(cls)} - NOT_REPEATED
    unknown = [str(key) for key in keys if str(key).replace("-", "_") not in known]
    refuse(
        (f"unknown key {key!r}; known: {', '.join(sorted(known))}" for key in unknown),
        where=f"{path}: ",
    )
    reader = _Parser(exit_on_error=False, allow_abbrev=False)
    hints = {name: hint for cls in FILE_CLASSES for name, hint in get_type_hints(cls).items()}
    for name, hint in hints.items():
        reader.add_argument("--" + _dashed(name), type=hint)
    spelt = yaml.safe_dump({str(key).replace("-", "_"): value for key, value in keys.items()})
    found = vars(_checked(lambda: reader.parse_string(spelt, defaults=False), hints, f"{path}: "))
    wanted = {item.name for cls in classes for item in fields(cls)}
    return {name: value for name, value in found.items() if name in wanted}


def _normalise(argv: Sequence[str], by_flag: Mapping[str, str]) -> list[str]:
    """`argv` with dashes for underscores and aliases resolved.

    Raises:
        UsageError: an unknown flag; abbreviations are unknown, too.
    """
    known = {flag for flag in by_flag.values() if not flag.startswith("--no-")}
    unknown, normal = [], []
    for word in argv:
        name, equals, value = word.partition("=")
        if not name.startswith("-") or re.fullmatch(r"-[\d.].*|-", name):
            normal.append(word)
            continue
        flag = by_flag.get(_dashed(name))
        if flag is None:
            unknown.append(f"unknown flag {name}; known: {', '.join(sorted(known))}")
        else:
            normal.append(flag + equals + value)
    refuse(unknown)
    return normal


def _checked(read: Callable[[], Any], hints: Mapping[str, Any], where: str = "") -> Any:
    """What `read` gives; the parser's complaints become one line that names the setting."""
    try:
        return read()
    except Exception as error:  # jsonargparse raises several kinds, all of them about the input
        text = " ".join(str(error).split())
        name = re.search(r'Parser key "(\w+)"', text)
        value = re.search(r"(?:Got|Given) value: (.*?)$", text)
        if name and value:
            flag = name[1] if where else "--" + _dashed(name[1])
            text = f"{flag}: expected {_kind(hints[name[1]])}, got {value[1]!r}"
        raise UsageError(where + text) from None


def _kind(hint: Any) -> str:
    """What a value of this type looks like, for --help and for errors."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds = [_kind(arg) for arg in get_args(hint) if arg is not type(None)]
    return " or ".join(kinds) or {int: "N", float: "NUMBER", str: "TEXT"}.get(hint, "PATH")


def _value_of(flag: str, argv: Sequence[str]) -> str | None:
    for at, word in enumerate(argv):
        if word == flag and at + 1 < len(argv):
            return argv[at + 1]
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None


def _spellings(item: Field[Any]) -> list[str]:
    return ["--" + _dashed(item.name), *item.metadata.get("aliases", ())]


def _dashed(name: str) -> str:
    return name.replace("_", "-")
