"""A program of somebody else's, with a `train.py` and a `configs/` of its own: `... RANK FOLDER`.

It is copied next to them and started there, once for each of two ranks. The folders that it takes
from this repository are loaded under one name, `muster._train`, with nothing of theirs on the path.
"""

import importlib
import pickle
import pkgutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import configs
import train

FOLDERS = "sync batches checkpoints records distributed evaluation model program".split()
RANKS = 2


def of(name: str) -> Any:
    return importlib.import_module(f"muster._train.{name}")


def every_module_loads() -> None:
    for folder in FOLDERS:
        found = of(folder)
        for one in pkgutil.walk_packages(found.__path__, f"{found.__name__}."):
            importlib.import_module(one.name)


def nothing_else_was_loaded(repository: Path) -> None:
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    ours = {name for name, file in files.items() if file and repository in Path(file).parents}
    assert all(name.partition(".")[0] == "muster" for name in ours if ".venv" not in files[name])
    assert train.MINE == configs.MINE == "mine"


def gradient(rank: int, mode: str, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient that a mode leaves, and what the mean over ranks is."""
    base, ranks = of("sync.base"), of("sync.ranks").Ranks
    world_size = 1 if mode == "single" else RANKS
    own = ranks(rank, world_size) if world_size > 1 else ranks()
    sync = base.build(mode, own, base.SyncOptions(**options))
    torch.manual_seed(0)
    wrapped = sync.wrap(model := nn.Linear(3, 1))
    sync.backward(wrapped(torch.full((2, 3), 1.0 + rank)).sum())
    sync.sync(wrapped)
    means = [2.0 * (1 + one) for one in range(RANKS)] if world_size > 1 else [2.0 * (1 + rank)]
    return model.weight.grad, torch.full((1, 3), sum(means) / len(means))


def main() -> None:
    rank, folder, repository = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    sys.path.append(str(repository))  # behind this folder, as where workers are started
    import muster

    assert {"torch"}.isdisjoint(muster.__dict__) and muster.sync.__module__.startswith("muster._")
    every_module_loads()
    nothing_else_was_loaded(repository)
    options = of("sync.base").SyncOptions(bucket_mb=3.0, compress="int8")
    assert type(options).__module__ == "muster._train.sync.base"
    assert pickle.loads(pickle.dumps(options)) == options
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2
    )
    for mode in ("single", "all_reduce", "gather_scatter", "ddp", "accelerate"):
        got, want = gradient(rank, mode)
        assert torch.equal(got, want), f"{mode}: {got}, not {want}"
    for mode, compress in (("all_reduce", "int8"), ("ddp", "bf16")):
        got, want = gradient(rank, mode, compress=compress)
        assert torch.allclose(got, want, rtol=0.02), f"{mode}, {compress}: {got}, not {want}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
