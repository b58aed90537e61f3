"""Print --help."""

import inspect
import sys
from argparse import Action, ArgumentParser, HelpFormatter, _SubParsersAction
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from configs.raw import with_home
from configs.settings.fields import flag, known_values
from configs.settings.launch import ProgramConfig
from muster.command import AT_LOGIN
from muster.errors import UsageError, closest
from muster.terminal import TIP

LONGEST_KIND = 40  # characters of `{ddp,single}` beside a flag; more names are in the text
UNITS = {"_s": "SECONDS", "_mb": "MIB"}  # by the last part of a setting's name
ELSEWHERE = "From another machine, such as your laptop"
LOGIN_FLAGS = {
    "login": ("[USER@]HOST", "run this command on the login node of a cluster"),
    "login_config": ("FILE", "ssh configuration file to use (default: ~/.ssh/config)"),
    "login_dir": ("FOLDER", "where to install Muster on the login node (default: ~/.muster)"),
    "login_python": (
        "FILE",
        "Python on the login node with Muster's dependencies (default: Muster installs them once)",
    ),
}
ALSO_AT_LOGIN = (
    "From another machine, such as your laptop, --login me@cluster runs this command on the "
    "cluster's login node; muster run --help lists more options for this."
)


class Parser(ArgumentParser):
    """A parser whose errors look like those of all our commands; `~` in a Path is expanded."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.register("type", Path, lambda text: Path(with_home(text)))

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UsageError(message)

    def _check_value(self, action: Action, value: Any) -> None:
        """Refuse a value as argparse does, with a suggestion."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        name = action.option_strings[0] if action.option_strings else self.prog
        similar = closest(str(value), choices)
        spelt = f"{name} " if isinstance(action, _SubParsersAction) else ""
        hint = f"did you mean {spelt}{similar}?" if similar else f"choose from {', '.join(choices)}"
        raise UsageError(f"{name}: unknown {value!r}{TIP}{hint}")


class _Help(HelpFormatter):
    """Show the type of a setting with several flags once."""

    def _format_action_invocation(self, action: Action) -> str:
        metavar = f" {action.metavar}" if action.nargs != 0 and action.metavar else ""
        return (", ".join(action.option_strings) + metavar).strip()


def parser_of(
    classes: Sequence[type],
    values: Mapping[str, Any],
    prog: str,
    description: str,
    listed: Collection[str],
    example: str = "",
) -> ArgumentParser:
    """The parser that prints --help with the settings `listed`; `values` are their defaults."""
    takes_program = ProgramConfig in classes
    program = " [-- PROGRAM [ARGUMENT ...]]" if takes_program else ""
    parser = ArgumentParser(
        prog,
        f"{prog} [--flag VALUE ...]{program}",
        description,
        epilog=example and f"Example: {example}",
        formatter_class=partial(_Help, max_help_position=28),
    )
    parts = list(_parts(classes, listed))
    names = {item.name for _, items in parts for item in items}
    if names < {item.name for cls in classes for item in fields(cls) if not _is_internal(item)}:
        parser.add_argument("--help-all", action="store_true", help="show all flags, and exit")
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    if takes_program:
        text = "your program, such as -- train.py --lr 1e-3 (default: Muster's own trainer)"
        parser.add_argument("program", nargs="?", metavar="-- PROGRAM", help=text)
        parser._positionals.title = "program"
    for title, items in parts:
        group = parser.add_argument_group(title)
        for item in items:
            _add(group, item, values[item.name])
    if _may_log_in(prog):
        group = parser.add_argument_group(ELSEWHERE)
        for name, (metavar, text) in LOGIN_FLAGS.items():
            group.add_argument(flag(name), metavar=metavar, help=text)
    return parser


def describe(verbs: "_SubParsersAction[Any]") -> None:
    """Let the help of each verb begin with its line in the list of verbs."""
    for listed in verbs._choices_actions:
        text = str(listed.help)
        verbs.choices[listed.dest].description = f"{text[0].upper()}{text[1:]}."


def at_login(prog: str) -> str:
    """A sentence for the help of a command that `muster` can also run on a login node."""
    return ALSO_AT_LOGIN if _may_log_in(prog) else ""


def _may_log_in(prog: str) -> bool:
    muster, _, word = prog.partition(" ")
    return muster == "muster" and word in AT_LOGIN


def _is_internal(item: Field[Any]) -> bool:
    return bool(item.metadata.get("internal"))


def _parts(
    classes: Sequence[type], listed: Collection[str]
) -> Iterator[tuple[str, list[Field[Any]]]]:
    """The settings to show, under the first line of the class that has them."""
    added = set[str]()
    for cls in classes:
        by_name = {item.name: item for item in fields(cls)}
        for owner in reversed(cls.__mro__):
            own = [
                name for name in inspect.get_annotations(owner) if name in by_name.keys() - added
            ]
            added.update(own)
            items = [by_name[name] for name in own if name in listed]
            items = [item for item in items if not _is_internal(item)]
            if items:
                yield (owner.__doc__ or "").split("\n")[0].removesuffix("."), items


def _add(group: Any, item: Field[Any], value: Any) -> None:
    """Add a line for one setting, with its value as the default."""
    options = [flag(item.name), *item.metadata.get("aliases", ())]
    text = item.metadata["help"]
    if item.type is bool:
        options.append(flag(f"no_{item.name}"))
        text += f" (default: {'on' if value else 'off'})"
        group.add_argument(*options, action="store_true", help=text)
        return
    kind = kind_of(item.type)
    names = known_values(item)
    if names:
        kind = "{" + ",".join(names) + "}"
    if len(kind) > LONGEST_KIND:
        text += f": {', '.join(names)}"
        kind = "NAME"
    if kind == "NUMBER":
        kind = next((unit for end, unit in UNITS.items() if item.name.endswith(end)), kind)
    if value not in (None, "", ()):
        default = format(value, "g") if isinstance(value, float) else str(value)
        if type(value) is tuple:
            default = item.metadata.get("between", " ").join(map(str, value))
        text += f" (default: {default.replace('%', '%%')})"  # argparse expands % in help
    group.add_argument(*options, metavar=kind, help=text)


def kind_of(hint: Any) -> str:
    """How a value of this type looks, for --help and for errors."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds = [kind_of(arg) for arg in get_args(hint) if arg not in (type(None), ...)]
    return " or ".join(kinds) or {
        bool: "true or false",
        int: "INTEGER",
        float: "NUMBER",
        Path: "PATH",
    }.get(hint, getattr(hint, "FORM", "TEXT"))
