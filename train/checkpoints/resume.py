"""Find the newest checkpoint that is whole, on any of the hosts, and give it to all ranks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from muster.run_files import CHECKPOINTS
from train.checkpoints import storage
from train.checkpoints.exchange import Files, gather_text, share
from train.checkpoints.storage import Checkpoint, Damaged
from train.distributed import patience
from train.distributed.world import World
from train.records.console import Console

AUTO = "auto"
# Settings that the restored parts stand on, each with the flag that gives up the part.
DATA = ("task", "seed", "batch_size", "train_samples")
SCHEDULE = ("lr", "schedule", "warmup_steps", "power", "end_lr")
OPTIMIZER = ("optimizer",)


def load(
    config: TrainConfig,
    world: World,
    device: torch.device,
    folder: Path,
    console: Console,
    *,
    reads: bool,
) -> tuple[Files, dict[str, Any]] | None:
    """What --resume names, on every rank; None where it is auto and there is nothing yet.

    `reads`: whether this rank looks at its disk, which one rank of each file system does. The
    newest that is whole is used; what is damaged is named and passed over.

    Raises:
        UsageError: there is none, or it is of a run with other settings.
    """
    assert config.resume is not None
    place = folder if config.resume == AUTO else Path(config.resume).expanduser()
    found, notes = _newest(candidates(place)) if reads else (None, [])
    newest_here = [found[0].run, found[0].step] if found else None
    patience.wait_for_all(world)  # one disk may be far slower than another
    mine = json.dumps({"newest": newest_here, "notes": notes})
    answers = [json.loads(text) for text in gather_text(world, mine, device)]
    for note in dict.fromkeys(note for answer in answers for note in answer["notes"]):
        console.line(note)
    newest = max(filter(None, (answer["newest"] for answer in answers)), default=None)
    if newest is None:
        damaged = any(answer["notes"] for answer in answers)
        if config.resume == AUTO and not damaged:
            console.line(f"no checkpoint in {place} yet: starting from the beginning")
            return None
        raise UsageError(
            f"--resume {config.resume}: {'no whole' if damaged else 'no'} checkpoint in {place}"
        )
    source = [answer["newest"] for answer in answers].index(newest)
    own: tuple[Files, dict[str, Any]] = ({}, {})
    if world.rank == source and found is not None:
        files, state = found[1]
        is_here = found[0].path.parent.resolve() == folder.resolve()
        own = files, {**state, "origin": found[0].origin if is_here else None}
    files, state = share(world, source, *own, device)
    problems = list(mismatches(config, state))
    if problems:
        raise UsageError("\n".join(problems))
    console.line(f"going on from step {state['step']} ({place})")
    return files, state


def candidates(place: Path) -> list[Checkpoint]:
    """The checkpoints that `place` stands for, the newest first.

    It may be one of them (then older ones beside it follow), the folder of several, or a run's. Of
    several runs that wrote into one folder, the last one's count, and what it had gone on from.
    """
    if storage.is_finished(place):
        beside = storage.found(place.parent)
        names = [one.path.name for one in beside]
        own = beside[names.index(place.name) :] if place.name in names else [Checkpoint(0, place)]
        return storage.line(own)
    return storage.line(storage.found(place) or storage.found(CHECKPOINTS.path(place)))


def mismatches(config: TrainConfig, state: dict[str, Any]) -> Iterator[str]:
    """A line for each setting that differs from the checkpoint's and that it stands on."""
    groups = (
        (DATA, config.reset_data, "--reset-data"),
        (SCHEDULE, config.reset_lr_scheduler, "--reset-lr-scheduler"),
        (OPTIMIZER, config.reset_optimizer, "--reset-optimizer"),
    )
    for names, is_reset, remedy in groups:
        for name in names if not is_reset else ():
            was, now = state["settings"][name], getattr(config, name)
            if was != now:
                flag = "--" + name.replace("_", "-")
                yield f"{flag} is {now}, but was {was} in the checkpoint; give {was}, or {remedy}"


def moved_schedule(
    config: TrainConfig, now: int, state: dict[str, Any], console: Console
) -> Iterator[str]:
    """Why the learning rate would jump, where it decays until step `now` and did until another."""
    was = state.get("schedule_end", now)  # older checkpoints do not say
    if was == now or config.schedule == "constant" or config.reset_lr_scheduler:
        return
    if config.reset_data:
        console.line(f"the learning rate decays until step {now}, no longer {was}")
        return
    yield (
        f"its learning rate decays until step {was}, but with --epochs {config.epochs} and "
        f"--schedule-steps {config.schedule_steps or 'unset'} it does until step {now}; "
        f"give --schedule-steps {was}, or --reset-lr-scheduler"
    )


def _newest(
    found: list[Checkpoint],
) -> tuple[tuple[Checkpoint, tuple[Files, dict[str, Any]]] | None, list[str]]:
    """The first of `found` that is whole, with what it holds, and a line for each that is not."""
    notes: list[str] = []
    for one in found:
        try:
            return (one, storage.read(one)), notes
        except Damaged as error:
            notes.append(f"{error}; trying the one before it")
    return None, notes
