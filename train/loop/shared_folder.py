"""All ranks of a run write into one folder, and each its output into files of its own."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from configs.cli import to_yaml
from configs.settings.program import claim, claim_new
from configs.settings.train import TrainConfig
from muster.run_files import CONFIG, ERRORS, OUTPUT
from muster.writing import write_text, writing

if TYPE_CHECKING:  # output is redirected before torch is imported
    from train.distributed.rendezvous import Peers


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
            run_id = claim_new(config, what or config.name, str(world.world_size))
        elif not config.redirect:
            claim(config.logs_root / run_id, config)
        run_dir = config.logs_root / run_id
        if not (settings := CONFIG.path(run_dir)).exists():
            write_text(settings, to_yaml(config))
        return run_id

    run_dir = config.logs_root / peers.agree("run_id", choose)
    run_dir.mkdir(parents=True, exist_ok=True)  # nodes need not share a file system
    return run_dir


def redirect_output(run_dir: Path, rank: int) -> None:
    """Send this process's stdout and stderr, whoever writes to them, to files of its own."""
    for stream, file in ((1, OUTPUT), (2, ERRORS)):
        path = file.path(run_dir, rank=rank)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, stream)
        os.close(opened)
