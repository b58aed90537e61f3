"""A program of several ranks, for tests, that saves, resumes, and prints what it has restored."""

import json
import os
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import muster

FOLDER = Path(os.environ.get("SAVED", "."))
STEPS = 6
TRAININGS = {  # options of muster.sync, and the step after which the run is cut
    "all_reduce": ({}, 1),
    "ddp": ({"mode": "ddp"}, 3),
    "find_unused_parameters": ({"find_unused_parameters": True, "compress": "powersgd"}, 3),
    "bf16": ({"compress": "bf16"}, 3),
    "powersgd, not begun": ({"compress": "powersgd"}, 1),
    "powersgd": ({"compress": "powersgd", "compress_rank": 1}, 3),
    "the module in it": ({"compress": "powersgd"}, 3),
    "own buffers": ({"broadcast_buffers": False}, 3),
}


class Net(nn.Module):
    """Its layers are not used in the order of their creation, so DDP changes its buckets."""

    def __init__(self):
        super().__init__()
        self.last, self.first, self.middle = nn.Linear(32, 1), nn.Linear(32, 32), nn.Linear(32, 32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x):
        return self.last(self.middle(self.norm(self.first(x)).tanh()).tanh())


class Own:
    def __init__(self, state=None):
        self.state = state

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def trained(run, name, folder, last, saves=False):
    """Train; return the losses, and the exact weights and buffers at the end."""
    torch.manual_seed(0)
    model = muster.sync(Net(), bucket_mb=0.001, **TRAININGS[name][0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    saved = model.module if name == "the module in it" else model
    losses = []
    own = {"model": saved} if name == "own buffers" else {}  # which differ by rank
    alike = {"optimizer": optimizer} if own else {"model": saved, "optimizer": optimizer}
    with muster.checkpoints(FOLDER / folder, by_rank=own, **alike) as checkpoints:
        for step in range(checkpoints.resume() + 1, last + 1):
            seeded = torch.Generator().manual_seed(100 * step + run.rank)
            data = torch.randn(8, 32, generator=seeded)
            loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        if saves:
            checkpoints.save(last)
    return losses, [one.flatten().tolist() for one in model.state_dict().values()]


def goes_on(run, name):
    cut = TRAININGS[name][1]
    whole, weights = trained(run, name, f"{name}-whole", STEPS)
    trained(run, name, name, cut, saves=True)
    return trained(run, name, name, STEPS) == (whole[cut:], weights)


def own_states(run):
    """Return what each rank's objects contain after a resume, and what they contained before."""
    rank = run.rank
    states = {
        "position": {"epoch": 2, "seen": [rank] * (rank + 1), 7: torch.tensor([rank, 5])},
        "keys": {f"only {rank}": 1.5, "both": "text"},
        "alike": {"a": torch.ones(2)},
        "list": [1, rank],
    }
    objects = {name: Own(state) for name, state in states.items()}

    def split(objects):
        declared = {"position": objects["position"], "alike": objects["alike"]}
        return {"by_rank": declared, "keys": objects["keys"], "list": objects["list"]}

    muster.checkpoints(FOLDER / "own", **split(objects)).save(1)
    again = {name: Own() for name in states}
    muster.checkpoints(FOLDER / "own", **split(again)).resume()
    return [repr({name: one.state for name, one in again.items()}), repr(states)]


def refused(**objects):
    try:
        muster.checkpoints(FOLDER / "refused", **objects).save(1)
    except muster.MusterError as error:
        return [type(error).__name__, str(error)]
    return ["saved", ""]


def main():
    with muster.init(device="cpu") as run:
        own = Own({"rank": run.rank})
        muster.checkpoints(FOLDER / "by rank", by_rank={"own": own}).save(1)
        own = Own({"both": 1, "rank": run.rank})
        muster.checkpoints(FOLDER / "undeclared", own=own).save(1)
        sharded = fully_shard(nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(sharded.parameters())
        sharded(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        found = {
            "goes on": {name: goes_on(run, name) for name in TRAININGS},
            "own": own_states(run),
            "object": refused(own=Own({"a": object()})),
            "only on rank 1": refused(own=Own({"a": {1} if run.rank else 1})),
            "sharded": refused(model=sharded),
            "its optimizer": refused(optimizer=optimizer),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
