"""Another program's flags become ours, and what is wrong is said in its words."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from configs import cli
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError
from train.distributed.world import World

FLAG = re.compile(r"--[a-z][\w-]*")


class Parser(argparse.ArgumentParser):
    """Of the flags that say something else here, or in another way."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def parted(
        self, argv: Sequence[str], names: Mapping[str, str]
    ) -> tuple[argparse.Namespace, list[str]]:
        """What its own flags say, and the other words as ours, by the `names` that we have."""
        args, words = self.parse_known_args(argv)
        pairs = [word.partition("=") for word in words]
        return args, [names.get(flag, flag) + equals + text for flag, equals, text in pairs]


def settings(
    classes: Sequence[type], argv: Sequence[str], names: Mapping[str, str], **page: str
) -> tuple[Any, ...]:
    """One instance of each of `classes`; `page` is `prog` and `description` of --help.

    Raises:
        UsageError: one is wrong; every one at once, with the flags that were typed.
    """
    theirs = {ours: theirs for theirs, ours in names.items()}
    try:
        return cli.parse(classes, argv, **({"prog": "", "description": ""} | page))
    except UsageError as error:
        text = FLAG.sub(lambda found: theirs.get(found[0], found[0]), str(error))
        raise UsageError(text) from None


def of_worker(
    argv: Sequence[str], env: Mapping[str, str], names: Mapping[str, str], **page: str
) -> tuple[TrainConfig, ByHand, World]:
    """The settings of one of the workers; a process alone has the mode single, if no other is set.

    Raises:
        UsageError: a flag is wrong; every one at once.
    """
    config, by_hand = settings([TrainConfig, ByHand], argv, names, **page)
    world = World.find(env, **asdict(by_hand))
    if world.world_size == 1:
        config, _ = settings([TrainConfig, ByHand], ["--sync=single", *argv], names, **page)
    return config, by_hand, world
