"""Other launchers' flags are answered with ours, and only flags that exist are suggested."""

import re

from configs import cli, foreign_flags
from configs.settings import sbatch_options
from launch.programs.command_line import CLASSES
from muster.command import LOGIN


def accepted() -> set[str]:
    """Return every spelling of every flag of a run."""
    known = {"--help", "--help-all", "--config", *(f"--{cli.dashed(name)}" for name in LOGIN)}
    for cls in CLASSES:
        for item in cli.fields(cls):
            known |= {f"--{cli.dashed(item.name)}", *item.metadata.get("aliases", ())}
    return known


def test_every_flag_of_ours_that_is_named_exists():
    texts = [*foreign_flags.FLAGS, *foreign_flags.TRAINER_FLAGS.values()]
    texts += [*sbatch_options.REFUSED.values(), *foreign_flags.LAUNCHERS.values()]
    named = {flag for text in texts for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", text)}
    assert len(named) > 10 and named <= accepted()


def test_no_flag_that_is_accepted_is_called_foreign():
    names = {*foreign_flags.TEXTS, *foreign_flags.TRAINER_FLAGS}
    foreign = {f"-{name}" if len(name) == 1 else f"--{name}" for name in names}
    assert not foreign & accepted()
