"""What each setting changes in a run, from its field in configs/settings."""

from dataclasses import Field, fields
from functools import cache
from typing import Any

from configs.settings.bench import BenchConfig
from configs.settings.fields import Affects
from configs.settings.launch import LaunchConfig, SlurmConfig, SshConfig
from configs.settings.train import TrainConfig

# For settings whose field does not say it.
CLASSES: dict[type, Affects] = {
    LaunchConfig: "nothing",
    SshConfig: "nothing",
    SlurmConfig: "nothing",
    BenchConfig: "losses",
    TrainConfig: "losses",
}
# Settings of a study's testbed: the rate of its links, and how many nodes are busy.
OF_TESTBED = frozenset({"rate", "busy"})
WIDTH = frozenset({"workers", "nodes"})


@cache
def _known() -> dict[str, tuple[Field[Any], Affects]]:
    return {
        one.name: (one, one.metadata.get("affects") or usual)
        for settings, usual in CLASSES.items()
        for one in fields(settings)
    }


def affecting(*what: Affects) -> frozenset[str]:
    """The settings that change one of these."""
    return frozenset(name for name, (_, affects) in _known().items() if affects in what)


def defaults() -> dict[str, Any]:
    """The default of every setting, as config.yaml writes it."""
    return {name: one.default for name, (one, _) in _known().items()}
