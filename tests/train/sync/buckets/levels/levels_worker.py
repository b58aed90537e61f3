"""One of N workers that pretend to be on nodes, in several layouts: `levels_worker.py FOLDER`.

A layout is the node of each rank. Rank 0 writes what the tests compare.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tests.train import matrix_worker as matrix
from tests.train.matrix_tasks import TASKS
from tests.train.matrix_worker import Case
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import ranks_of
from train.sync.base import SyncOptions
from train.sync.buckets import sparse_rows
from train.sync.buckets.levels import node_groups
from train.sync.buckets.levels.two_levels import TwoLevels
from train.sync.ledger import CollectiveLedger
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks
from train.worker import end_process

LAYOUTS = {
    4: {
        "two and two": [0, 0, 1, 1],
        "in turns": [1, 0, 1, 0],
        "three and one": [0, 0, 1, 0],
        "one, two and one": [7, 5, 5, 6],
    },
}
FLAT = {"one node": [3, 3, 3, 3], "four nodes": [0, 1, 2, 3]}
SIZES = (1, 2, 3, 7, 1000, 100_001)
TIMEOUT_S = 60.0
LOCAL = Case("mlp", "fp64", "local_sgd", 0.004, "even", 1, 0.05)
DILOCO = {"sync_every": 4, "outer_lr": 0.7, "outer_momentum": 0.9}
# In both of these a node of two computes what a worker of two computes.
SPLITS = {2: ("4,4", "5,3"), 4: ("3,1,2,2", "4,1,0,3")}


def means(ranks: Ranks) -> dict[str, float]:
    """How far the mean of made-up tensors is off, by their type; all ranks hold the same bits."""
    two_levels = TwoLevels(node_groups.find(ranks), ranks.rank, TIMEOUT_S)
    gaps = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        given = [_made(size, ranks.world_size).to(dtype) for size in SIZES]
        tensors = [one[ranks.rank].clone() for one in given]
        for moving in [two_levels.start(tensor) for tensor in tensors]:  # all at once
            moving.wait()
        for tensor in tensors:
            own = tensor.view(torch.uint8)
            assert (ranks.all_gather(own) == own).all()
        gaps[str(dtype)] = max(
            (tensor.double() - one.double().mean(dim=0)).abs().max().item()
            for tensor, one in zip(tensors, given, strict=True)
        )
    return gaps


def _made(size: int, ranks: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(size)
    return torch.randn(ranks, size, generator=generator, dtype=torch.float64)


def cases(world_size: int) -> list[tuple[str, Case]]:
    """Each layout meets some cases of the equality matrix; with WHOLE_MATRIX all of them."""
    names, found = list(LAYOUTS[world_size]), []
    of_mode = [case for case in matrix.cases(world_size) if case.mode == "all_reduce"]
    for at, case in enumerate(of_mode):
        chosen = names if "WHOLE_MATRIX" in os.environ else [names[at % len(names)]]
        found += [(name, case) for name in chosen]
    return found


def trained(ranks: Ranks, case: Case, **more: Any) -> torch.Tensor:
    """The losses and final parameters, one after the other."""
    history, model, trainer = matrix.train(
        case, ranks, TASKS[case.task], matrix.STEPS, evaluate="never", **more
    )
    if ranks.world_size > 1:
        matrix.assert_same_bits(ranks, trainer, case)
    if case.mode == "all_reduce":
        matrix.assert_communicates_once(case, history, model, ranks)
    losses = torch.tensor([step.loss for step in history.steps], dtype=torch.float64)
    return torch.cat([losses, *(one.detach().double().flatten() for one in model.parameters())])


def equality(ranks: Ranks) -> dict[str, Any]:
    """Trainings in two levels, and those of one process."""
    found, known = {}, {}
    for layout, case in cases(ranks.world_size):
        node = LAYOUTS[ranks.world_size][layout][ranks.rank]
        placed = replace(ranks, node=node, ledger=CollectiveLedger())
        name = f"{layout}|{case.name}"
        found[name] = {"got": trained(placed, case, levels=2), "case": (case.task, case.precision)}
        assert set(placed.ledger.gradients) == {"all_reduce_by_node"}
        if ranks.rank == 0:
            if case.reference not in known:
                known[case.reference] = trained(Ranks(), case.reference)
            found[name]["want"] = known[case.reference]
    return found


def local(ranks: Ranks) -> dict[str, torch.Tensor]:
    """local_sgd whose ranks, or nodes of two, train alone."""
    found = {}
    node = ranks.rank * 2 // ranks.world_size
    for split in SPLITS[ranks.world_size]:
        for accumulation in (1, 2):
            case = replace(LOCAL, split=split, accumulation=accumulation)
            more = {**DILOCO, "local_group": "node", "length_balance": False}
            name = f"{SPLITS[ranks.world_size].index(split)} {accumulation}"
            found[name] = trained(replace(ranks, node=node), case, **more)
    return found


def every_step(ranks: Ranks) -> dict[str, torch.Tensor]:
    """A round after every step of plain SGD, beside the exact mode, on nodes of unlike size."""
    case = replace(LOCAL, split="5,1,4,2", clip=0.0)
    more: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.0, "lr": 0.1}
    placed = replace(ranks, node=LAYOUTS[4]["three and one"][ranks.rank])
    got = trained(placed, case, local_group="node", sync_every=1, **more)
    one = trained(replace(ranks, node=0), case, local_group="node", sync_every=4, **more)
    want = trained(placed, replace(case, mode="all_reduce"), levels=2, **more)
    count = matrix.STEPS  # a step's loss is told before its round
    return {"got": got[count:], "one node": one[count:], "want": want[count:]}


def auto(ranks: Ranks) -> dict[str, Any]:
    """What --levels auto does in each layout: what it says, and the levels of two checkpoints."""
    found = {}
    for layout, nodes in {**LAYOUTS[4], **FLAT}.items():
        placed = replace(ranks, node=nodes[ranks.rank])
        sync, model = AllReduce(placed, SyncOptions()), torch.nn.Linear(300, 300)
        sync.wrap(model)
        before = sync.state()
        model(torch.ones(1, 300)).sum().backward()
        sync.sync(model)
        state, messages = sync.state(), sync.take_messages()
        again = AllReduce(placed, SyncOptions())
        again.wrap(model)
        again.restore(model, {"levels": torch.tensor(2)} if state else {})
        model(torch.ones(1, 300)).sum().backward()
        again.sync(model)
        found[layout] = {
            "before": before, "state": state, "messages": messages,
            "resumed": again.state(), "resumed messages": again.take_messages(),
        }  # fmt: skip
        chosen = torch.tensor([float(state.get("levels", 1))])
        assert (ranks.all_gather(chosen) == chosen).all()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    sparse_rows.LEAST_BYTES = 0  # so that these small embeddings, too, go by rows
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        found: dict[str, Any] = {"local": local(ranks)}
        if ranks.world_size == 4:
            found["means"] = {
                layout: means(replace(ranks, node=nodes[ranks.rank]))
                for layout, nodes in {**LAYOUTS[4], **FLAT}.items()
            }
            found |= {"auto": auto(ranks), "every step": every_step(ranks)}
            found["equality"] = equality(ranks)
        if ranks.rank == 0:
            torch.save(found, folder / f"found_{ranks.world_size}.pt")


if __name__ == "__main__":
    main()
    end_process(0)
