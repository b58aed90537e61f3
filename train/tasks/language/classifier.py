"""Build a classifier from a Hub name, a folder or a config.json; refuse a model that cannot fit."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from muster.errors import UsageError
from train.tasks.sources import hub

HEAD = re.compile(r"For(\w+Classification)$")  # in transformers' names of models
# Their position ids start after the padding id, so that fewer positions are left for tokens.
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


def load_config(name: str) -> Any:
    """The model's configuration.

    Raises:
        UsageError: there is no such model.
    """
    from transformers import AutoConfig

    return hub.fetch("--model", name, AutoConfig.from_pretrained)


def set_labels(name: str, config: Any, task: Labels, is_fresh: bool) -> list[int] | None:
    """Give a model's configuration the task's labels, unless it has exactly these, in any order.

    `is_fresh`: the model has no weights, or gets a new head.

    Returns:
        The index of the model's output for each task label; None if these are in GLUE's order. For
        example, RoBERTa's MNLI models have contradiction first.

    Raises:
        UsageError: the model was made for another number of labels, or for labels of another kind.
    """
    names = config.architectures or ()
    heads = [match[1] for made in names if (match := HEAD.search(made))]
    if not is_fresh and heads and (heads[0] != task.head or config.num_labels != task.num_labels):
        known = ", ".join(str(label) for label in config.id2label.values())
        kind = "" if heads[0] == task.head else f", for {heads[0]}, not {task.head}"
        raise UsageError(
            f"--model {name} has {config.num_labels} labels ({known}){kind}, but {task.name} has "
            f"{task.num_labels} ({', '.join(task.class_names) or 'a score'})"
            "\ntip: use a model for this task, or add --new-head to give this model a new head"
        )
    if task.is_regression:
        config.problem_type = "regression"
    numbers = {str(label).lower(): int(at) for label, at in (config.label2id or {}).items()}
    names = [label.lower() for label in task.class_names]
    if sorted(numbers) == sorted(names):
        order = [numbers[label] for label in names]
        return None if order == sorted(order) else order
    config.num_labels = task.num_labels
    config.id2label = dict(enumerate(task.class_names or ("score",)))
    config.label2id = {label: at for at, label in config.id2label.items()}
    return None


def check_tokenizer(name: str, config: Any, tokenizer: Any) -> None:
    """Refuse a tokenizer that cannot pad, or has tokens for which the model has no embeddings.

    Raises:
        UsageError: it does not fit.
    """
    if tokenizer.pad_token_id is None:
        raise UsageError(
            f"the tokenizer of {name} has no padding token\ntip: choose another --tokenizer"
        )
    count = max(len(tokenizer), 1 + max(tokenizer.get_vocab().values(), default=-1))
    if count > config.vocab_size:
        raise UsageError(
            f"the tokenizer has {count} tokens, but --model {name} has a vocabulary of "
            f"{config.vocab_size}"
            "\ntip: use the model's own tokenizer with --tokenizer"
        )


def check_length(name: str, config: Any, max_seq_length: int) -> None:
    """Refuse a length for which the model has too few positions.

    Raises:
        UsageError: it has too few.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if config.model_type in OFFSET_POSITIONS and positions:
        positions -= config.pad_token_id + 1
    if positions is not None and 0 < positions < max_seq_length:
        raise UsageError(
            f"--max-seq-length {max_seq_length} is longer than the {positions} positions of {name}"
        )


def build(
    name: str, config: Any, is_fresh: bool, kind: Any, *, new_head: bool = False
) -> nn.Module:
    """Build the model in float32; missing weights come from torch's seeded generator.

    `kind` is its class in transformers. With `new_head`, all weights outside of the model's body
    come from the generator as well.

    Raises:
        UsageError: the weights are missing, or belong to another model.
    """
    model: nn.Module
    try:
        random = kind.from_config(config, dtype=torch.float32) if is_fresh or new_head else None
        if random is not None and is_fresh:
            model = random
            return model
        options = {"config": config, "dtype": torch.float32, "output_loading_info": True}
        options["ignore_mismatched_sizes"] = True  # mismatches are refused below, by name
        model, loading = hub.fetch("--model", name, kind.from_pretrained, **options)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"--model {name}: {hub.first_line(error)}") from None
    prefix = f"{model.base_model_prefix}."
    body = [key for key in model.state_dict() if key.startswith(prefix)]
    for key, theirs, ours in sorted(loading["mismatched_keys"]):
        if not new_head or key in body:
            remedy = "\ntip: add --new-head to give it a new head" if key not in body else ""
            raise UsageError(
                f"--model {name}: {key} has shape {tuple(theirs)} in its weights, but "
                f"{tuple(ours)} in its configuration{remedy}"
            )
    if random is not None:
        head = {key: own for key, own in random.state_dict().items() if key not in body}
        model.load_state_dict(head, strict=False)
    missing = set(loading["missing_keys"]).intersection(body)
    if 2 * len(missing) > len(body):
        raise UsageError(
            f"--model {name}: its weights do not belong to {type(model).__name__}: "
            f"{len(missing)} of {len(body)} tensors are missing"
            "\ntip: for random weights, set --model to the path of its config.json"
        )
    return model


def is_configuration(name: str) -> bool:
    """Whether `name` is a configuration, which has no weights."""
    return Path(name).suffix == ".json"
