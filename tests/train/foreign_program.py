"""Someone else's program, with its own `train.py` and `configs/`: `... RANK FOLDER REPOSITORY`.

It is copied next to them and started there, once for each of two ranks. The folders that it uses
from this repository are loaded under one name, `muster._train`, and hide none of its own modules.
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


def gradient(rank: int, mode: str, **options: object) -> torch.Tensor:
    """Return the gradient that a mode leaves for two rows with values of 1 + this rank's number."""
    base, ranks = of("sync.base"), of("sync.ranks").Ranks(rank, RANKS)
    sync = of("sync.plugins").build(mode, ranks, base.SyncOptions(**options))
    wrapped = sync.wrap(model := nn.Linear(3, 1))
    sync.backward(wrapped(torch.full((2, 3), 1.0 + rank)).sum())
    sync.sync(wrapped)
    return model.weight.grad


def main() -> None:
    rank, folder, repository = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    sys.path.append(str(repository))  # after this folder, as in workers
    import muster

    assert {"torch"}.isdisjoint(muster.__dict__) and muster.sync.__module__.startswith("muster._")
    every_module_loads()
    nothing_else_was_loaded(repository)
    options = of("sync.base").SyncOptions(bucket_mb=3.0, compress="bf16")
    assert type(options).__module__ == "muster._train.sync.base"
    assert pickle.loads(pickle.dumps(options)) == options
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=RANKS
    )
    for mode, compress in (("gather_scatter", "none"), ("accelerate", "none"), ("ddp", "bf16")):
        got = gradient(rank, mode, compress=compress)
        assert torch.allclose(got, torch.full((1, 3), 3.0), rtol=0.02), f"{mode}: {got}"
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
