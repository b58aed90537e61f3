"""Workers of one process group train every kind of model in every exact mode.

The result of a case is its losses and what is in the model, or why it failed; every rank checks
that all ranks have the same bits.
"""

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from tests.train.matrix_worker import SMALL_MB, Case, small_limits, train
from tests.train.on_ranks import flat
from tests.train.retained import assert_same_bits
from tests.train.sync.model_kinds import KINDS, Broken, Changing, Halves, Masked
from train.checkpoints.synced_objects import SyncedModel
from train.loop.trainer import Trainer
from train.sync.ranks import Ranks

STEPS = 8
# Without overlap, a collective for each parameter; with it, in buckets.
MODES = [
    *itertools.product(("gather_scatter", "all_reduce"), (0.0, SMALL_MB)),
    ("ddp", 25.0),
    ("accelerate", 25.0),
    ("zero1", SMALL_MB),
    ("fsdp", 25.0),
]
SPLITS = {1: "even", 2: "5,3", 3: "6,1,2"}
WITHOUT_SAMPLES = {2: "1,0", 3: "3,1,0"}  # on the last rank
WITH_BUFFERS = "buffers of all kinds"
OF_ANY_TYPE = ("all_reduce", "gather_scatter", "ddp", "accelerate", "zero1", "local_sgd")


def cases(world_size: int) -> list[Case]:
    """Return the cases (the references for one rank); those that raise come last.

    After a case that has raised, nothing can be sent.
    """
    matrix = []
    for kind, (mode, bucket_mb) in itertools.product(KINDS, MODES):
        splits = WITHOUT_SAMPLES if kind == WITH_BUFFERS else SPLITS
        if (kind, mode) != ("changing", "fsdp"):
            split = splits.get(world_size, "even")
            matrix.append(Case(kind, "fp64", mode, bucket_mb, split, 1, 0.05))
    if world_size == 1:
        return list(dict.fromkeys(case.reference for case in matrix))
    return sorted(matrix, key=raises)


def raises(case: Case) -> bool:
    """Whether the mode sends in the backward pass, and a gradient arrives several times in one."""
    return case.task == "reentrant checkpointing" and case.mode != "fsdp" and case.bucket_mb > 0


def outcome(case: Case, ranks: Ranks) -> dict[str, Any]:
    """Return the result with which `case` has ended."""
    try:
        _, model, trainer = train(case, ranks, KINDS[case.task], STEPS)
    except Exception as error:  # noqa: BLE001 (the test says which)
        return {"error": f"{type(error).__name__}: {error}"}
    state = {
        name: tensor.clone() for name, tensor in SyncedModel(model, trainer.grad_sync).collected()
    }
    if case.task == WITH_BUFFERS:
        assert_constants_stay(ranks, state)
    else:
        assert_same_bits(ranks, trainer, case.name)
    return {**result(trainer), "params": flat([state[name] for name in sorted(state)])}


def assert_constants_stay(ranks: Ranks, state: dict[str, torch.Tensor]) -> None:
    """Check that constants stay, and that all ranks agree on other buffers except their cache."""
    del state["places"]
    plain = Masked().double()
    for name in ("mask", "frequencies", "turns"):
        assert torch.equal(state.pop(name), getattr(plain, name)), name
    assert state["steps"] == STEPS
    values = flat(list(state.values()))
    assert (ranks.all_gather(values) == values).all()


def result(trainer: Trainer) -> dict[str, Any]:
    losses = [step.loss for step in trainer.history.steps]
    return {"losses": torch.tensor(losses, dtype=torch.float64)}


def halves(mode: str, ranks: Ranks) -> dict[str, Any]:
    """Train a model with parameters of several types."""
    split = "even" if ranks.world_size == 1 else "3,1,0"
    _, model, trainer = train(Case("", "fp32", mode, 4.0, split, 1, 1.0), ranks, Halves, STEPS)
    return {**result(trainer), "state": dict(model.state_dict())}


def error_of(mode: str, ranks: Ranks, task: Any) -> str:
    """Return the message of this rank's error, or "nothing"."""
    try:
        train(Case("", "fp32", mode, 4.0, "even", 1, 1.0), ranks, task, STEPS)
    except Exception as error:  # noqa: BLE001 (the test says which)
        return str(error)
    return "nothing"


def sums_of_a_step(mode: str, ranks: Ranks) -> float:
    """Return how many all_reduces a step starts, according to torch's profiler."""
    counts = []
    for steps in (2, 7):
        with torch.profiler.profile() as profiler:
            train(Case("", "fp64", mode, 4.0, "even", 1, 0.05), ranks, Changing, steps)
        names = [event.name for event in profiler.events()]
        counts.append(names.count("gloo:all_reduce"))
    return (counts[1] - counts[0]) / 5


def work(ranks: Ranks) -> Mapping[str, Any]:
    small_limits()
    outcomes: dict[str, Any] = {}
    if ranks.world_size == 1:
        outcomes["halves"] = halves("single", ranks)
    if ranks.world_size == 3:
        outcomes["broken"] = error_of("local_sgd", ranks, Broken)
        outcomes["halves|fsdp"] = error_of("fsdp", ranks, Halves)
        outcomes |= {f"halves|{mode}": halves(mode, ranks) for mode in OF_ANY_TYPE}
        outcomes |= {f"sums|{mode}": sums_of_a_step(mode, ranks) for mode in ("all_reduce", "ddp")}
    return outcomes | {case.name: outcome(case, ranks) for case in cases(ranks.world_size)}
