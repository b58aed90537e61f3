"""All ranks of a run write into one folder, and each its output into files of its own."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from configs.cli import to_yaml
from configs.run_folder import claim, claim_new
from configs.schema import TrainConfig
from train.measure.records import rank_name

if TYPE_CHECKING:  # output is redirected before torch is imported
    from train.rendezvous import Peers


def open_run_folder(config: TrainConfig, peers: "Peers", what: str = "") -> Path:
    """The run's folder, made by rank 0, on every rank.

    A launcher has made it already and says so by --redirect; by hand, a folder with anything in
    it is refused unless --overwrite is given.

    Raises:
        UsageError: the folder is in use, or cannot be made.
    """
    world = peers.world

    def choose() -> str:
        run_id = config.run_id or world.run_id
        if run_id is None:
            run_id = claim_new(config, str(world.world_size), what)
        elif not config.redirect:
            claim(config.logs_root / run_id, overwrite=config.overwrite)
        run_dir = config.logs_root / run_id
        if not (run_dir / "config.yaml").exists():
            (run_dir / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
        return run_id

    run_dir = config.logs_root / peers.agree("run_id", choose)
    run_dir.mkdir(parents=True, exist_ok=True)  # nodes need not share a file system
    return run_dir


def redirect_output(run_dir: Path, rank: int) -> None:
    """Send this process's stdout and stderr, whoever writes to them, to files of its own."""
    folder = run_dir / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    for stream, ending in ((1, "out"), (2, "err")):
        path = folder / f"{rank_name(rank)}.{ending}"
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
