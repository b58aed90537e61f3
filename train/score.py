"""Score a saved model: `python -m train.score MODEL --task rte --data-dir glue_data/RTE`.

MODEL is a folder such as `logs/<run>/model`, the folder of its run, or for transformers models a
name on the Hub. All flags of a run apply; nothing is trained. Like any run, it may use several
workers. With --predict it writes labels for GLUE's unlabelled test sets, in the format that GLUE's
site accepts.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

from configs import cli
from configs.settings.fields import Config, setting
from configs.settings.launch import RunConfig
from configs.settings.train import ByHand, DeviceConfig, TrainConfig
from muster.errors import UsageError
from muster.run_files import CONFIG, MODEL, SCORES, clears
from muster.writing import write_json
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World
from train.worker import as_worker, end_process

ASKS = ("-h", "--help", "--help-all")
# Most other settings are useful only for training.
SHOWN_SETTINGS = {item.name for cls in (RunConfig, DeviceConfig, ByHand) for item in fields(cls)}
SHOWN_SETTINGS |= set("task data_dir tokenizer lower_case max_seq_length pad eval_samples".split())
SHOWN_SETTINGS |= {"eval_batch_size", "metrics", "precision", "cache_dir", "predict"}
SHOWN_SETTINGS -= {"checkpoint_dir"}


@dataclass(frozen=True, kw_only=True)
class PredictConfig(Config):
    """What is done with the model beside scoring it."""

    predict: bool = setting(False, "write predicted labels for the task's unlabelled test sets")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or (words[0].startswith("-") and words[0] not in ASKS):
        raise UsageError("MODEL is missing\ntip: python -m train.score MODEL --task TASK [flags]")
    model, asks = words[0], words[0].startswith("-")  # for help
    config, by_hand, more = cli.parse(
        [TrainConfig, ByHand, PredictConfig],
        words if asks else words[1:],
        prog="python -m train.score MODEL",
        description="Evaluate a saved model in the same way as during training. MODEL is a folder "
        "such as logs/RUN/model, the folder of its run, or for transformers models a name on the "
        "Hub.",
        first=SHOWN_SETTINGS,
        example="python -m train.score logs/RUN --task rte",
    )
    folder = _folder_of(Path(model))
    if config.overwrite and config.run_id is not None:
        run_dir = (config.logs_root / config.run_id).absolute()
        if folder.exists() and clears(run_dir, folder.absolute(), resumed=False):
            raise UsageError(f"--overwrite would delete {folder}\ntip: use another --run-id")
    weights = folder if folder.is_dir() and not (folder / "config.json").exists() else None
    if config.new_head:
        raise UsageError("--new-head would evaluate an untrained head\ntip: leave it out")
    config = replace(config, epochs=0, save_model=False, evaluate="end", resume=None)
    if weights is None:
        config = replace(config, model=str(folder) if folder.is_dir() else model)
    return as_worker(config, by_hand, lambda *raw: _score(weights, more, *raw))


def _folder_of(path: Path) -> Path:
    """Return the model's folder; `path` may also be the folder of its run, or a name on the Hub.

    Raises:
        UsageError: the folder contains no model.
    """
    if not path.is_dir() or (path / "config.json").exists():
        return path
    from train.loop.export import WEIGHTS  # here, so that a wrong flag is reported immediately

    if (path / WEIGHTS).exists():
        return path
    own = MODEL.path(path)
    if own.is_dir():
        return own
    state = "is a run without a saved model: it has not finished, or had --no-save-model"
    if not CONFIG.path(path).exists():
        state = f"has neither config.json nor {WEIGHTS}"
    raise UsageError(f"{path} {state}\ntip: give the folder of a model, such as logs/RUN/model")


def _score(
    weights: Path | None,
    more: PredictConfig,
    config: TrainConfig,
    world: World,
    exit_guard: ExitGuard,
) -> None:
    # here, so that a wrong flag is reported immediately
    from train.loop import predictions, run

    with run.prepared(config, world, exit_guard, weights) as (trainer, run_dir):
        unlabelled = predictions.unlabelled_sets(trainer) if more.predict else {}
        (record,) = trainer.fit().evaluations
        if trainer.ranks.rank == 0:
            scores = {"task": config.task, "samples": record.samples, **record.metrics}
            write_json(SCORES.path(run_dir), scores)
            rows = [(name, f"{value:.4f}") for name, value in record.metrics.items()]
            trainer.console.table([*rows, ("samples", str(record.samples))])
        for path in predictions.write_predictions(trainer, unlabelled, run_dir):
            trainer.console.line(f"predictions: {path}")


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
