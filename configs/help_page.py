"""Print --help."""

import sys
from argparse import SUPPRESS, Action, ArgumentParser, HelpFormatter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, Literal, NoReturn, get_args, get_origin

from configs.settings.fields import flag
from configs.settings.launch import Nodes
from muster.errors import UsageError


class Parser(ArgumentParser):
    """A parser whose errors look like those of all our commands."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise UsageError(message)


class _Help(HelpFormatter):
    """Show the type of a setting with several flags once."""

    def _format_action_invocation(self, action: Action) -> str:
        metavar = f" {action.metavar}" if action.nargs != 0 and action.metavar else ""
        return ", ".join(action.option_strings) + metavar


def parser_of(
    classes: Sequence[type],
    values: Mapping[str, Any],
    prog: str,
    description: str,
    shown: Collection[str],
) -> ArgumentParser:
    """The parser that prints --help; `values` are the defaults to show."""
    usage = f"{prog} [--config FILE] [--flag VALUE ...]"
    parser = ArgumentParser(
        prog, usage, description, formatter_class=partial(_Help, max_help_position=28)
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file of settings")
    added, groups = set[str](), dict[str, Any]()
    for cls in classes:
        own = [item for item in fields(cls) if item.name not in added]
        added |= {item.name for item in own}
        is_whole = all(item.name in shown for item in own)
        about = (cls.__doc__ or "").split("\n")[0].removesuffix(".")
        title = about if is_whole else "Of every run"
        group = groups.get(title) or groups.setdefault(title, parser.add_argument_group(title))
        for item in own:
            aliases = item.metadata.get("aliases", ())
            options = [flag(item.name), *(one for one in aliases if one[1] != "-")]
            text = item.metadata["help"] if item.name in shown else SUPPRESS
            if item.type is bool:
                options.append(flag(f"no_{item.name}"))
                group.add_argument(*options, action="store_true", help=text)
            else:
                if text != SUPPRESS and values[item.name] not in (None, ""):
                    text += f" (default: {values[item.name]})"
                group.add_argument(*options, metavar=kind_of(item.type), help=text)
    return parser


def kind_of(hint: Any) -> str:
    """How a value of this type looks, for --help and for errors."""
    if get_origin(hint) is Literal:
        return "{" + ",".join(map(str, get_args(hint))) + "}"
    kinds = [kind_of(arg) for arg in get_args(hint) if arg is not type(None)]
    return " or ".join(kinds) or {
        Nodes: Nodes.KIND,
        bool: "true or false",
        int: "INTEGER",
        float: "NUMBER",
        str: "TEXT",
    }.get(hint, "PATH")
