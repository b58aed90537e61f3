"""Metrics in TensorBoard and Weights & Biases, as rank 0 records them, with the run's settings.

The settings come from `config.yaml` in the run folder, if this node sees it: it contains no value
of --env, no other variable, and no argument of a program. By default wandb would also send a
program's arguments, its output and uncommitted changes, so that is turned off.
"""

import atexit
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from muster.errors import MusterError
from muster.run_files import CONFIG, TENSORBOARD, WANDB, plain_name
from muster.writing import write_text

FLUSH_S = 10
QUEUE = 1000  # events that a slow disk may hold up before a step waits for it


class Tracker(Protocol):
    """An object that shows metrics while a run trains."""

    def add(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in `tensorboard/` of the run folder, one for each attempt."""

    def __init__(self, run_dir: Path, last_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = TENSORBOARD.path(run_dir, name="").parent
        first = None if last_step is None else last_step + 1
        # TensorBoard then leaves out what an earlier attempt did after its last checkpoint
        self._writer = SummaryWriter(
            str(folder), purge_step=first, max_queue=QUEUE, flush_secs=FLUSH_S
        )
        if settings := settings_of(run_dir):
            self._writer.add_text("settings", f"```yaml\n{settings}```", first)
        atexit.register(self.close)  # a program does not close its records

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A run with the same id in each attempt; `wandb/` of the run folder contains its files."""

    def __init__(self, run_dir: Path, last_step: int | None) -> None:
        import yaml  # which wandb needs
        from wandb import Error, Settings, init  # a folder `wandb` of its files has none of these

        try:
            self._run = init(
                id=_wandb_id(run_dir), name=run_dir.name, resume="allow", dir=str(run_dir),
                config=yaml.safe_load(settings_of(run_dir)) or {},
                settings=Settings(
                    x_disable_meta=True, disable_git=True, disable_code=True, console="off",
                    quiet=True,
                ),
            )  # fmt: skip
        except Error as error:  # such as a missing key
            raise MusterError(f"wandb: {error}") from None
        # its own count of steps only grows, but a resumed run repeats some
        self._run.define_metric("*", step_metric="step")

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def close(self) -> None:
        self._run.finish(exit_code=int(sys.exc_info()[0] is not None))


def _wandb_id(run_dir: Path) -> str:
    """Return the run's name and its start time, as the first attempt wrote them down."""
    path = WANDB.path(run_dir) / "id"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_text(path, f"{plain_name(run_dir.name)}-{time.strftime('%Y%m%d-%H%M%S')}")
    return path.read_text(encoding="utf-8")


def settings_of(run_dir: Path) -> str:
    """Return the text of the settings file; empty on a node that does not see it."""
    path = CONFIG.path(run_dir)
    return path.read_text(encoding="utf-8") if path.exists() else ""


KINDS: dict[str, Callable[[Path, int | None], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
}
