"""A classifier from a Hub name, a folder or a config.json; one that cannot fit is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muster.errors import UsageError
from train.tasks.base import Batch
from train.tasks.sources import hub

# Their position ids start after the padding id, so that the last positions are never used.
OFFSET_POSITIONS = ("roberta", "xlm-roberta", "camembert", "mpnet", "longformer", "xlm-roberta-xl")


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The labels that a model for one task gives to a text, or to each word."""

    name: str  # of the task, in errors: "rte"
    labels: tuple[str, ...] = ()  # as spelt in the files; empty: a score
    label_names: tuple[str, ...] = ()  # their meaning, if the files have numbers
    head: str = "SequenceClassification"  # of the model, by transformers' name

    @property
    def is_regression(self) -> bool:
        return not self.labels

    @property
    def num_labels(self) -> int:
        """Outputs of the model: one per label, or one score."""
        return len(self.labels) or 1

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the labels in a model's configuration."""
        return self.label_names or self.labels


def load_config(name: str, task: Labels, is_fresh: bool) -> Any:
    """The model's configuration, with the labels of the task; `is_fresh`: without weights.

    Raises:
        UsageError: there is no such model, or it was made for another number of labels.
    """
    from transformers import AutoConfig

    config = hub.fetch("--model", name, AutoConfig.from_pretrained)
    has_head = any(f"For{task.head}" in made for made in config.architectures or ())
    if not is_fresh and has_head and config.num_labels != task.num_labels:
        names = ", ".join(str(label) for label in config.id2label.values())
        raise UsageError(
            f"--model {name} has {config.num_labels} labels ({names}), but {task.name} has "
            f"{task.num_labels} ({', '.join(task.class_names) or 'a score'}); "
            "give a model without a classification head, or one for this task"
        )
    if not _names_labels(config, task):
        config.num_labels = task.num_labels
        config.id2label = dict(enumerate(task.class_names or ("score",)))
        config.label2id = {label: at for at, label in config.id2label.items()}
    if task.is_regression:
        config.problem_type = "regression"
    return config


def check(name: str, config: Any, tokenizer: Any, max_seq_length: int) -> None:
    """Refuse a tokenizer or a length for which the model has no embeddings.

    Raises:
        UsageError: one of the two is too large.
    """
    check_length(name, config, max_seq_length)
    if tokenizer.pad_token_id is None:
        raise UsageError(f"the tokenizer of {name} has no padding token; give another --tokenizer")
    if len(tokenizer) > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {len(tokenizer)} tokens, but --model {name} knows "
            f"{config.vocab_size}; give the model's own with --tokenizer"
        )


def check_length(name: str, config: Any, max_seq_length: int) -> None:
    """Refuse samples that are longer than the model has positions for.

    Raises:
        UsageError: they are.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if config.model_type in OFFSET_POSITIONS and positions:
        positions -= config.pad_token_id + 1
    if positions is not None and 0 < positions < max_seq_length:
        raise UsageError(
            f"--max-seq-length {max_seq_length} is more than the {positions} positions of {name}"
        )


def build(name: str, config: Any, is_fresh: bool, kind: Any) -> nn.Module:
    """The model in float32; missing weights come from torch's seeded generator.

    `kind` is transformers' class for it.

    Raises:
        UsageError: the weights are missing, or belong to another model.
    """
    model: nn.Module
    try:
        if is_fresh:
            model = kind.from_config(config, dtype=torch.float32)
            return model
        options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
        model, loading = hub.fetch("--model", name, kind.from_pretrained, **options)
    except (ValueError, KeyError, RuntimeError) as error:  # of the latter: weights of other sizes
        raise UsageError(f"--model {name}: {str(error).partition(chr(10))[0]}") from None
    body = [key for key in model.state_dict() if key.startswith(f"{model.base_model_prefix}.")]
    missing = set(loading["missing_keys"]).intersection(body)
    if 2 * len(missing) > len(body):
        raise UsageError(
            f"--model {name}: its weights are not those of a {type(model).__name__} "
            f"({len(missing)} of {len(body)} tensors are missing); "
            "start from random ones with --random-weights"
        )
    return model


def label_order(config: Any, task: Labels) -> list[int] | None:
    """The model's output for each of the task's labels; None if they are in GLUE's order.

    For example, RoBERTa's MNLI models have contradiction first.
    """
    if not _names_labels(config, task):
        return None
    numbers = {str(label).lower(): int(at) for label, at in config.label2id.items()}
    order = [numbers[label.lower()] for label in task.class_names]
    return None if order == sorted(order) else order


def is_configuration(name: str) -> bool:
    """Whether `name` is a configuration, which has no weights."""
    return Path(name).suffix == ".json"


def inputs(model: nn.Module, batch: Batch) -> Batch:
    """The inputs for `model` in a batch, without labels; DistilBERT has no token types."""
    return {key: tensor for key, tensor in batch.items() if key != "labels" and _takes(model, key)}


def _takes(model: nn.Module, key: str) -> bool:
    """Whether its forward has an argument `key`, or that of a part to which it passes **kwargs.

    The wrappers of DDP and PEFT name few inputs and pass the others on.
    """
    names, hands_on = _named_inputs(type(model).forward)
    return key in names or (hands_on and any(_takes(child, key) for child in model.children()))


@lru_cache
def _named_inputs(forward: Callable[..., object]) -> tuple[frozenset[str], bool]:
    """The inputs that `forward` names, and whether it takes any others."""
    found = signature(forward).parameters
    return frozenset(found), any(one.kind is Parameter.VAR_KEYWORD for one in found.values())


def _names_labels(config: Any, task: Labels) -> bool:
    """Whether the model's configuration has exactly the task's labels, in any order."""
    known = sorted(str(label).lower() for label in (config.label2id or {}))
    return known == sorted(label.lower() for label in task.class_names)
