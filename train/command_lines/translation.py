"""Translate another program's flags to ours, and report problems in its words."""

import argparse
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import yaml

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError, refuse
from muster.terminal import in_one_line
from train.distributed.world import World

FLAG = re.compile(r"--[a-z][\w-]*")


class Flags(NamedTuple):
    """The meaning of a program's flags here, from its YAML file in this folder."""

    tasks: Mapping[str, str]
    same: Mapping[str, str]  # our flags with another name; flags with the same name are left out
    defaults: Sequence[str]  # in our words, if the program's differ from ours
    not_needed: Sequence[str]
    refused: Mapping[str, str]  # each with what to use instead
    also: Mapping[str, str] = MappingProxyType({})  # other names of flags that are the same


def read(program: str) -> Flags:
    """The flags of a program, from the file of this folder that is named after it."""
    path = Path(__file__).with_name(f"{program}.yaml")
    return Flags(**yaml.safe_load(path.read_text(encoding="utf-8")))


class Parser(argparse.ArgumentParser):
    """A parser of a program's flags; add those that need a translation of their own."""

    def __init__(self, flags: Flags, prog: str, description: str) -> None:
        same = ", ".join(f"{theirs} ({ours})" for theirs, ours in flags.same.items())
        needless = ", ".join(flags.not_needed)
        super().__init__(
            prog=prog,
            usage="%(prog)s [--flag VALUE ...]",
            description=f"{description}. All flags of train.worker are also accepted.",
            epilog=(
                f"Other flags, with Muster's names in brackets: {same}. Accepted, but not "
                f"needed: {needless}."
            ),
            allow_abbrev=False,
        )
        self._flags = flags
        for flag in flags.not_needed:
            self.add_argument(flag, nargs="?", help=argparse.SUPPRESS)
        refused = self.add_argument_group("flags that are refused")
        for flag, why in flags.refused.items():
            refused.add_argument(flag, nargs="?", const="", help=in_one_line(why))

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parted(self, argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The values of the added flags, and the other words as ours.

        The values include `theirs`, for errors: the program's name of each of our flags, as typed
        if it has several.

        Raises:
            UsageError: a flag is wrong or missing, or has no meaning here.
        """
        args, words = self.parse_known_args(argv)
        refuse(
            f"{flag}: {why}"
            for flag, why in self._flags.refused.items()
            if getattr(args, flag[2:].replace("-", "_")) is not None
        )
        pairs = [word.partition("=") for word in words]
        names = {**self._flags.same, **self._flags.also}
        refuse(two_values(argv, names))
        args.theirs = {ours: theirs for theirs, ours in self._flags.same.items()}
        for theirs in (word.partition("=")[0] for word in argv):
            if theirs in names:
                args.theirs[names[theirs]] = theirs
        return args, [names.get(flag, flag) + equals + text for flag, equals, text in pairs]


def two_values(argv: Sequence[str], names: Mapping[str, str]) -> Iterator[str]:
    """A line for each two flags that mean the same here, by `names`, but have different values.

    For example, torch.distributed.launch counts --local_rank within a node.
    """
    typed: dict[str, tuple[str, str]] = {}
    for word, following in itertools.zip_longest(argv, argv[1:], fillvalue=""):
        theirs, equals, text = word.partition("=")
        ours = names.get(theirs)
        if ours is None or "=" in ours:  # in the latter case, the value is ours already
            continue
        value = text if equals else following
        first, before = typed.get(ours, (theirs, value))
        typed[ours] = (theirs, value)
        if first != theirs and before != value:
            yield (
                f"{first} is {before}, but {theirs} is {value}, and both set {ours}"
                "\ntip: give only one of them"
            )


def settings(
    classes: Sequence[type],
    argv: Sequence[str],
    theirs: Mapping[str, str],
    prog: str = "",
    description: str = "",
) -> tuple[Any, ...]:
    """One instance of each of `classes`; `prog` and `description` are for --help.

    `theirs` has the program's names for our flags.

    Raises:
        UsageError: a setting is wrong; all problems at once, with the flags that were typed.
    """
    try:
        return cli.parse(classes, argv, prog=prog, description=description)
    except UsageError as error:
        text = FLAG.sub(lambda match: theirs.get(match[0], match[0]), str(error))
        raise UsageError(text) from None


def worker_settings(
    argv: Sequence[str], env: Mapping[str, str], theirs: Mapping[str, str], **page: str
) -> tuple[TrainConfig, ByHand, World]:
    """The settings of one worker; a single process gets the mode single, unless another is set.

    Raises:
        UsageError: a flag is wrong; all problems at once.
    """
    config, by_hand = settings([TrainConfig, ByHand], argv, theirs, **page)
    world = World.find(env, **asdict(by_hand))
    if world.world_size == 1:
        config, _ = settings([TrainConfig, ByHand], ["--sync=single", *argv], theirs, **page)
    return config, by_hand, world
