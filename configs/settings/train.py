"""Every setting of a run: one field is one flag, one YAML key and one line of --help."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from configs import plugins
from configs.settings.checkpoint import CheckpointConfig
from configs.settings.fields import no_share, not_positive, setting, too_low
from configs.settings.learning import LearningConfig
from configs.settings.sync import SyncingConfig
from muster.errors import refuse

MIN_PORT = 1024  # below it only root may listen, and the courses forbid it


@dataclass(frozen=True, kw_only=True)
class TrainConfig(CheckpointConfig, LearningConfig, SyncingConfig):
    """What is trained, on what, how long, and how its gradients are synchronised.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    # what
    task: str = setting("quickstart", "what to train, a file of train/tasks/")
    data_dir: Path | None = setting(
        None, "folder with the task's own files (default: the Hub)", affects="nothing"
    )
    model: str | None = setting(None, "Hub name, folder, or config.json (default: the task's)")
    tokenizer: str | None = setting(
        None, "Hub name, folder, or vocab.txt (default: the model's)", affects="nothing"
    )
    random_weights: bool = setting(False, "start from random weights, not the model's own")
    lower_case: Literal["auto", "yes", "no"] = setting(
        "auto", "lower-case text for a bare vocab.txt (auto: if it has no upper-case token)"
    )
    max_seq_length: int = setting(128, "tokens per sample at most; longer ones are truncated")
    pad: Literal["max_length", "longest"] = setting(
        "longest",
        "pad to max_seq_length, or to the longest sample of the batch: same loss",
        affects="computing",
    )
    length_balance: bool = setting(
        True,
        "cut batches so that all workers have as many tokens, padding included: same loss",
        affects="computing",
    )
    dropout: float | None = setting(None, "probability of every dropout (default: the model's)")
    batchnorm: Literal["synced", "local"] = setting(
        "synced", "BatchNorm's statistics: of the global batch, or of each worker's part"
    )
    mask_probability: float = setting(0.15, "share of tokens that pre-training predicts")
    whole_word: bool = setting(False, "pre-training masks whole words")
    train_samples: int | None = setting(None, "use the first n training samples only")
    eval_samples: int | None = setting(None, "use the first n samples of an evaluation set only")

    # how long
    epochs: int = setting(3, "passes over the training set; 0 only evaluates")
    max_steps: int | None = setting(
        None, "stop after this many steps; changes nothing else", affects="sharing"
    )
    schedule_steps: int | None = setting(
        None, "length of the learning-rate schedule in steps (default: all epochs)"
    )
    batch_size: int = setting(64, "samples per step over all workers together")
    eval_batch_size: int = setting(64, "evaluation samples per worker at a time", affects="sharing")
    accumulation: int = setting(1, "micro-batches a worker cuts its part of a batch into")
    split: str = setting(
        "even",
        "each worker's part of a batch: even, auto (by its speed), or weights like 3,1,0,4",
        affects="sharing",
    )

    # what it tells
    evaluate: Literal["epoch", "end", "never"] = setting(
        "epoch", "when to evaluate", affects="sharing"
    )
    metrics: str | None = setting(
        None, "also these of `evaluate`, such as f1:average=macro,./my_metric.py", affects="nothing"
    )
    log_every: int = setting(
        0, "print the loss of every n-th step; 0: of the first five only", affects="nothing"
    )
    seed: int = setting(42, "seed of weights, sample order and dropout")

    # where it runs
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "auto: cuda where there is one", affects="computing"
    )
    backend: Literal["auto", "gloo", "nccl"] = setting(
        "auto", "auto: nccl on cuda, gloo on cpu", affects="sharing"
    )
    threads: int | None = setting(
        None, "threads per worker (default: its share of the cores)", affects="computing"
    )
    data_workers: int = setting(0, "processes per worker that prepare batches", affects="computing")
    join_timeout_s: float = setting(
        300.0, "seconds that workers and nodes may take to come", affects="nothing"
    )
    timeout_s: float = setting(
        120.0,
        "seconds that a worker may come late to a collective (but for loading and saving)",
        affects="nothing",
    )

    # what is written where
    logs_dir: Path | None = setting(
        None, "where run folders go (default: logs/ of this checkout)", affects="nothing"
    )
    run_id: str | None = setting(
        None, "name of the run folder (default: time, task, mode, size)", affects="nothing"
    )
    overwrite: bool = setting(
        False,
        "clear the run folder of an earlier run (its checkpoints stay with --resume)",
        affects="nothing",
    )
    cache_dir: Path | None = setting(
        None, "tokenised data (default: ~/.cache/muster)", affects="nothing"
    )
    tensorboard: bool = setting(
        False, "also write TensorBoard events into the run folder", affects="nothing"
    )
    profile: bool = setting(
        False, "trace steps 3 to 7 of each worker, for Perfetto", affects="computing"
    )
    quiet: bool = setting(False, "print errors only", affects="nothing", aliases=["-q"])
    redirect: bool = setting(
        False, "send this worker's output to the run folder (for launchers)", affects="nothing"
    )

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        for name, package in (("task", "train.tasks"), ("sync", "train.sync.modes")):
            value, known = getattr(self, name), plugins.names(package)
            if value not in known:
                yield f"--{name}: unknown {value!r}; known: {', '.join(known)}"
        for name in ("batch_size", "eval_batch_size", "accumulation", "max_seq_length"):
            yield from too_low(name, getattr(self, name), 1)
        for name in ("max_steps", "schedule_steps", "threads", "train_samples", "eval_samples"):
            yield from too_low(name, getattr(self, name), 1)
        for name in ("epochs", "data_workers", "seed", "log_every"):
            yield from too_low(name, getattr(self, name), 0)
        if self.seed >= 2**63:
            yield f"--seed must be below 2**63 (got {self.seed})"
        for name in ("join_timeout_s", "timeout_s"):
            yield from not_positive(name, getattr(self, name))
        for name in ("dropout", "mask_probability"):
            yield from no_share(name, getattr(self, name))
        yield from self.learning_problems()
        yield from self.syncing_problems(self.precision, self.compile)
        yield from self.checkpoint_problems()
        if self.schedule_steps is not None and self.warmup_steps > self.schedule_steps:
            yield (
                f"--warmup-steps {self.warmup_steps} is longer than "
                f"--schedule-steps {self.schedule_steps}"
            )
        if self.backend == "nccl" and self.device == "cpu":
            yield "--backend nccl needs a GPU, but --device is cpu; use --backend gloo"
        if self.run_id is not None and not _is_name(self.run_id):
            yield f"--run-id {self.run_id!r}: use letters, digits, '.', '_', '-', '+' and '='"
        yield from self._split_problems()

    def _split_problems(self) -> Iterator[str]:
        if self.split in ("even", "auto"):
            return
        try:
            weights = self.split_weights()
        except ValueError:
            yield f"--split {self.split!r}: use even, auto, or a number per worker: 3,1,0,4"
            return
        if weights and (min(weights) < 0 or not math.isfinite(sum(weights)) or sum(weights) <= 0):
            yield f"--split {self.split}: weights must not be negative, and one must be above 0"

    def split_weights(self) -> tuple[float, ...] | None:
        """One weight per rank, or None for an even split, or one that is still to be measured."""
        if self.split in ("even", "auto"):
            return None
        return tuple(float(weight) for weight in self.split.split(","))

    def world_problems(self, world_size: int) -> Iterator[str]:
        """What is wrong with this configuration on `world_size` workers."""
        if self.sync == "single" and world_size > 1:
            yield (
                f"--sync single runs one process, but world_size is {world_size}; "
                "use --sync ddp or --nodes 1"
            )
        weights = self.split_weights()
        if weights is not None and len(weights) != world_size:
            yield (
                f"--split {self.split} has {len(weights)} weights, but world_size is {world_size};"
                " give one per worker"
            )

    @property
    def logs_root(self) -> Path:
        """The folder that holds the run folders."""
        return self.logs_dir if self.logs_dir is not None else plugins.REPOSITORY / "logs"


@dataclass(frozen=True, kw_only=True)
class ByHand:
    """Which worker this is, where no launcher says so: given on each node, as the courses do."""

    master_ip: str | None = setting(None, "address of rank 0, when starting workers by hand")
    master_port: int | None = setting(None, "port of rank 0 (default: 29500)")
    world_size: int | None = setting(None, "how many workers", aliases=["--num-nodes"])
    rank: int | None = setting(
        None, "which one this is, from 0; -1: a single process", aliases=["--local-rank"]
    )

    def __post_init__(self) -> None:
        refuse(self._problems())

    def _problems(self) -> Iterator[str]:
        yield from port_problems(self.master_port)
        if self.world_size is not None:
            yield from too_low("world_size", self.world_size, 1)
        if self.rank is not None and self.world_size is not None and self.rank >= self.world_size:
            yield (
                f"--rank {self.rank} is not below --world-size {self.world_size}; "
                f"ranks go from 0 to {self.world_size - 1}"
            )
        if self.rank is not None and self.rank < -1:
            yield f"--rank must be 0 or more, or -1 for a single process (got {self.rank})"


def port_problems(port: int | None) -> Iterator[str]:
    """What is wrong with a port that workers should meet at."""
    if port is not None and not MIN_PORT <= port <= 65535:
        yield f"--master-port must be between {MIN_PORT} and 65535 (got {port})"


def _is_name(text: str) -> bool:
    plain = text.translate(str.maketrans("", "", "._-+="))
    return plain.isascii() and plain.isalnum() and not text.startswith((".", "-"))
