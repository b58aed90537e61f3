"""Save a trained model in Hugging Face's format: weights, configuration, tokenizer, card."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from configs.cli import to_yaml
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from muster.writing import writing
from train.tasks.base import Task
from train.tasks.sources import hub

WEIGHTS = "model.safetensors"


def save(
    task: Task, model: nn.Module, folder: Path, config: TrainConfig, totals: Mapping[str, Any]
) -> None:
    """Write `model` (without a sync mode's wrapper) and its files into `folder`.

    A transformers model saves itself, for `from_pretrained`. For any other model the folder gets
    the weights, and `train.score` builds the rest from the settings in the card. For a model with
    adapters it gets both the adapters, for PEFT, and all weights: the base model need not have a
    name, and other parts may also have been trained.

    Raises:
        CannotWrite: the disk is full or not writable; an earlier model in the folder is kept.
    """
    partial = folder.with_name(f"{folder.name}.partial")
    try:
        with writing(folder):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _write(task, model, partial, config, {**totals, "folder": folder})
            shutil.rmtree(folder, ignore_errors=True)
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    task: Task, model: nn.Module, partial: Path, config: TrainConfig, totals: Mapping[str, Any]
) -> None:
    pretrained: Any = model if hasattr(model, "save_pretrained") else None
    if pretrained is not None:
        pretrained.save_pretrained(partial)
        if (tokenizer := task.tokens()) is not None:
            tokenizer.save_pretrained(partial)
    is_whole = (partial / "config.json").exists()
    if not is_whole:
        save_model(model, str(partial / WEIGHTS))
    library = "transformers" if is_whole else "muster" if pretrained is None else "peft"
    (partial / "README.md").write_text(_card(library, config, totals), encoding="utf-8")


def _card(library: str, config: TrainConfig, totals: Mapping[str, Any]) -> str:
    """Return the model card in Hugging Face's format, with all settings of the run."""
    task = config.task
    steps = totals["steps"]
    ranks = totals["world_size"]
    last = totals["evaluations"][-1] if totals.get("evaluations") else {}
    rows = [
        f"| {key} | {value:.4f} |" for key, value in last.items() if key not in ("epoch", "step")
    ]
    return f"""---
library_name: {library}
tags: [{task}]
---

# {task}, {steps} steps

Trained on `{task}` for {steps} steps of {config.batch_size} samples, with {ranks} \
worker{"s" * (ranks > 1)} in sync mode `{config.sync}`, {config.precision}, seed {config.seed}.

{chr(10).join(["| metric | value |", "|---|---|", *rows, ""] if rows else [])}
Score it again: `python -m train.score {totals["folder"]} --task {task}` with the data it was \
evaluated on.

All settings of the run:

```yaml
{to_yaml(config)}```
"""


def load_weights(model: nn.Module, folder: Path) -> None:
    """Load weights that `save` wrote, into a `model` that is not a transformers model.

    Raises:
        UsageError: the weights are missing, or belong to another model.
    """
    path = folder / WEIGHTS
    if not path.is_file():
        raise UsageError(f"{folder} has no {WEIGHTS}")
    hub.refuse_damage(path)
    try:
        load_model(model, path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{path}: {hub.first_line(error)}") from None
