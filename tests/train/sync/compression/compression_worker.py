"""One of N workers that average made-up gradients in every way: `compression_worker.py FOLDER`.

Every rank checks that all ranks hold the same bits; rank 0 writes what the tests compare.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from configs import plugins
from configs.settings.train import TrainConfig
from train.distributed import rendezvous
from train.distributed.rendezvous import Meeting
from train.distributed.world import World
from train.loop.build import of_settings, ranks_of
from train.sync.base import SyncOptions
from train.sync.compression.base import Compressor, flatten, load
from train.sync.ranks import Ranks
from train.worker import end_process

WAYS = plugins.names("train.sync.compression")
CPU = torch.device("cpu")
STEPS, RANK, SHARE = 12, 2, 0.1
SHAPES = [(40, 30), (7,), (16, 3, 3, 8), (2, 2), (1200,)]  # PowerSGD takes the first and third


def make(way: str, ranks: Ranks, **flags: Any) -> Compressor:
    flags = {"compress_rank": RANK, "compress_share": SHARE, **flags}
    config = TrainConfig(task="synthetic", sync="all_reduce", compress=way, **flags)
    made = load(ranks, of_settings(SyncOptions, config))
    assert made is not None
    return made


def gradients(ranks: Ranks, step: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Of this rank: noise around what all ranks see, as gradients are."""
    shared = torch.Generator().manual_seed(1)
    own = torch.Generator().manual_seed(1000 * (step + 1) + ranks.rank)
    return [
        (torch.randn(shape, generator=shared) + torch.randn(shape, generator=own)).to(dtype)
        for shape in SHAPES
    ]


def exact_mean(tensor: Tensor) -> Tensor:
    total = tensor.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def averaged(made: Compressor, key: int, given: list[Tensor]) -> Tensor:
    """What came of `given`, one after the other; all ranks have it bit for bit."""
    made.average(key, given)
    flat = flatten(given)
    rows = made.ranks.all_gather(flat)
    # as bytes: what is no number does not equal itself
    same = rows.view(torch.uint8) == flat.view(torch.uint8)
    assert same.all(), f"{made.options.compress}: ranks differ"
    return flat


def over_steps(way: str, ranks: Ranks) -> dict[str, Tensor]:
    """Sums over steps: of what came out, of the true means, and of what is still held back."""
    made = make(way, ranks)
    got = want = torch.zeros(sum(map(torch.Size.numel, map(torch.Size, SHAPES))))
    first = None
    for step in range(STEPS):
        given = gradients(ranks, step)
        true = exact_mean(flatten(given))
        one = averaged(made, 0, given)
        first = first if first is not None else torch.stack([one, true])
        got, want = got + one, want + true
    assert first is not None
    held = {name.split("/")[-1]: tensor for name, tensor in made.state().items()}
    back = torch.zeros_like(want)
    if "error" in held and way != "powersgd":
        back += exact_mean(held["error"])
    if "error of the mean" in held:
        back += ranks.all_gather(held["error of the mean"]).view(-1)[: len(back)]
    if way == "powersgd":  # its error is that of the large matrices only
        sizes = [torch.Size(shape).numel() for shape in SHAPES]
        first_part, third_part = exact_mean(held["error"]).split([sizes[0], sizes[2]])
        back[: sizes[0]] = first_part
        back[sizes[0] + sizes[1] :][: sizes[2]] = third_part
    return {"got": got, "want": want, "held back": back, "first": first}


def resumed(way: str, ranks: Ranks) -> bool:
    """Whether a compressor that goes on from another's state does as that one."""
    one, other = make(way, ranks), make(way, ranks)
    for step in range(3):
        for key in (0, 1):
            averaged(one, key, gradients(ranks, 10 * key + step))
    other.restore({name: tensor.clone() for name, tensor in one.state().items()}, CPU)
    return all(
        torch.equal(
            averaged(one, key, gradients(ranks, 100 + key)),
            averaged(other, key, gradients(ranks, 100 + key)),
        )
        for key in (0, 1)
    )


def moved(way: str, ranks: Ranks) -> dict[str, int]:
    """Bytes handed over by operation, for one step in float32."""
    ranks.ledger.gradients.clear()
    averaged(make(way, ranks), 0, gradients(ranks, 0, torch.float32))
    return dict(ranks.ledger.gradients)


def low_rank(ranks: Ranks) -> Tensor:
    """What PowerSGD makes of matrices whose mean has its rank, and that mean."""
    own = torch.Generator().manual_seed(7)
    left = torch.randn(40, RANK, generator=own, dtype=torch.float64)
    right = torch.randn(RANK, 30, generator=own, dtype=torch.float64) * (1 + ranks.rank)
    given = [left @ right]
    true = exact_mean(flatten(given))
    return torch.stack([averaged(make("powersgd", ranks), 0, given), true])


def all_shares(ranks: Ranks) -> Tensor:
    given = gradients(ranks, 0)
    true = exact_mean(flatten(given))
    return torch.stack([averaged(make("topk", ranks, compress_share=1.0), 0, given), true])


def with_nan(way: str, ranks: Ranks) -> bool:
    """Whether a single rank's lack of a number is seen by all."""
    given = gradients(ranks, 0, torch.float32)
    if ranks.rank == ranks.world_size - 1:
        given[0][3, 3] = torch.nan
    return bool(averaged(make(way, ranks), 0, given).isnan().any())


def reshaped(way: str, ranks: Ranks) -> Tensor:
    """What comes of a bucket whose form has changed, and of the same in a new compressor."""
    made = make(way, ranks)
    averaged(made, 0, gradients(ranks, 0))
    return torch.stack(
        [averaged(one, 0, gradients(ranks, 1)[:1]) for one in (made, make(way, ranks))]
    )


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    with rendezvous.meet(World.find(os.environ), Meeting("cpu", "gloo")) as peers:
        ranks = ranks_of(peers.world)
        found: dict[str, Any] = {"low rank": low_rank(ranks), "all shares": all_shares(ranks)}
        for way in WAYS:
            found[way] = {
                **over_steps(way, ranks),
                "resumed": resumed(way, ranks),
                "moved": moved(way, ranks),
                "nan": with_nan(way, ranks),
                "reshaped": reshaped(way, ranks),
            }
        if ranks.rank == 0:
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main()
    end_process(0)
