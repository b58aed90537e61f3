"""One of N workers of one process group that trains every kind of model in every exact mode.

Started by test_model_kinds.py through torchrun: `model_kinds_worker.py OUTPUT_DIR`. Rank 0 writes
the losses and final parameters of every case, or why it failed; every rank checks that all ranks
hold the same bits.
"""

import itertools
import os
import sys
from pathlib import Path
from typing import Any

import torch

from tests.train.matrix_worker import SMALL_MB, Case, assert_same_bits, train
from tests.train.sync.model_kinds import KINDS
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import ranks_of
from train.sync import ranks
from train.sync.ddp import hooks
from train.sync.ranks import Ranks
from train.worker import end_process

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


def cases(world_size: int) -> list[Case]:
    """At one rank, the references. Those that raise come last: nothing is sent after them."""
    found = []
    for kind, (mode, bucket_mb) in itertools.product(KINDS, MODES):
        splits = WITHOUT_SAMPLES if kind == "constant buffers" else SPLITS
        found.append(Case(kind, "fp64", mode, bucket_mb, splits.get(world_size, "even"), 1, 0.05))
    if world_size == 1:
        return list(dict.fromkeys(case.reference for case in found))
    return sorted(found, key=raises)


def raises(case: Case) -> bool:
    """What sends in the backward pass refuses a gradient that comes several times in one."""
    return case.task == "reentrant checkpointing" and case.mode != "fsdp" and case.bucket_mb > 0


def outcome(case: Case, ranks: Ranks) -> dict[str, Any]:
    """What `case` has ended with."""
    try:
        history, model, trainer = train(case, ranks, KINDS[case.task], STEPS)
    except Exception as error:  # noqa: BLE001 (the test says which)
        return {"error": f"{type(error).__name__}: {error}"}
    assert_same_bits(ranks, trainer, case)
    with trainer.grad_sync.whole(model):
        params = torch.cat([one.detach().flatten() for one in model.parameters()])
    return {
        "losses": torch.tensor([step.loss for step in history.steps], dtype=torch.float64),
        "params": params,
    }


def main() -> None:
    output = Path(sys.argv[1])
    torch.set_num_threads(1)
    hooks.LEAST_BYTES = 0  # so that these small embeddings, too, go by rows
    ranks.BROADCAST_BYTES = 2**12
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        found = {
            case.name: outcome(case, ranks_of(peers.world))
            for case in cases(peers.world.world_size)
        }
        if peers.world.is_main:
            torch.save(found, output / f"ranks_{peers.world.world_size}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
