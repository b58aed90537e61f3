"""Every setting of our trainer: one field is one flag, one YAML key and one line of --help."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import ClassVar, Literal

from configs import plugins
from configs.settings.checkpoint import CheckpointConfig
from configs.settings.fields import Config, applying, flag, setting
from configs.settings.launch import RunConfig
from configs.settings.sync import SyncingConfig
from muster.terminal import TIP

TWO_SIZES = (
    "--batch-size (over all workers) and --local-batch-size (per worker) exclude each other"
    "\ntip: give one of them"
)
INPUTS = ("model", "tokenizer", "data_dir", "cache_dir")  # settings that name a run's inputs
OPERATIONS = (  # measured by the benchmark of collectives
    "sendrecv", "broadcast", "gather", "scatter", "all_gather", "reduce_scatter", "all_reduce"
)  # fmt: skip
MIB = 2**20
# The trainer's settings that also apply to a measurement of the network.
MEASUREMENT_SETTINGS = frozenset(
    ("device", "backend", "threads", "timeout_s", "join_timeout_s")
    + ("logs_dir", "run_id", "overwrite", "quiet", "redirect")
)


@dataclass(frozen=True, kw_only=True)
class LearningConfig:
    """How an optimizer step is computed from gradients."""

    optimizer: Literal["adamw", "adam", "adadelta", "sgd"] = setting(
        "adamw", "how weights are updated"
    )
    lr: float = setting(5e-5, "peak learning rate", positive=True)
    schedule: Literal["linear", "polynomial", "constant"] = setting(
        "linear", "learning-rate schedule after the warm-up"
    )
    warmup_steps: int = setting(0, "steps of linear warm-up", least=0)
    power: float = setting(1.0, "power of the polynomial schedule; 1 is linear", positive=True)
    end_lr: float = setting(0.0, "learning rate at the end of the polynomial schedule", least=0)
    weight_decay: float = setting(0.0, "weight decay of the parameters chosen by --decay", least=0)
    decay: Literal["matrices", "all"] = setting(
        "matrices", "parameters with weight decay; all: also biases and norms, unlike BERT"
    )
    adam_beta1: float = setting(0.9, "Adam's and AdamW's decay of the mean", share=True)
    adam_beta2: float = setting(0.999, "Adam's and AdamW's decay of the mean square", share=True)
    adam_eps: float = setting(
        1e-8, "Adam's and AdamW's epsilon, added to the divisor", positive=True
    )
    adadelta_rho: float = setting(0.9, "Adadelta's decay of the mean squares", share=True)
    adadelta_eps: float = setting(
        1e-6, "Adadelta's epsilon, added to the mean squares", positive=True
    )
    momentum: float = setting(0.9, "SGD's momentum", least=0)
    max_grad_norm: float = setting(1.0, "clip the gradient to this norm; 0: never", least=0)
    precision: Literal["fp32", "bf16", "fp16", "fp64"] = setting(
        "fp32", "number format of the model"
    )
    float32_matmul: Literal["highest", "high", "medium"] = setting(
        "highest", "precision of float32 products, as torch names it; high: TF32 on a GPU"
    )
    compile: bool = setting(False, "compile the model's layers with torch during the first steps")


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """What is trained: the model, and its data."""

    task: str = setting("quickstart", "what to train", files="train.tasks")
    data_dir: Path | None = setting(None, "folder with the task's own files (default: the Hub)")
    model: str | None = setting(
        None, "Hub name, folder, or a config.json for random weights (default: the task's)"
    )
    tokenizer: str | None = setting(None, "Hub name, folder, or vocab.txt (default: the model's)")
    new_head: bool = setting(
        False, "replace the head of --model with a new one for the task's labels"
    )
    lower_case: Literal["auto", "yes", "no"] = setting(
        "auto", "lower-case text for a bare vocab.txt; auto: if it has no upper-case token"
    )
    max_seq_length: int = setting(128, "most tokens per sample; longer ones are truncated", least=1)
    pad: Literal["max_length", "longest"] = setting(
        "longest", "pad to max_seq_length, or to the longest sample of the batch, for the same loss"
    )
    length_balance: bool = setting(
        True, "balance tokens, padding included, between workers, for the same loss"
    )
    dropout: float | None = setting(
        None, "probability of dropout (default: the model's)", share=True
    )
    batchnorm: Literal["synced", "local"] = setting(
        "synced", "BatchNorm statistics: synced over the global batch, or local to each worker"
    )
    mask_probability: float = setting(
        0.15, "share of tokens to predict in pre-training", share=True
    )
    whole_word: bool = setting(False, "mask whole words in pre-training")
    train_samples: int | None = setting(None, "use only the first n training samples", least=1)
    eval_samples: int | None = setting(None, "use only the first n evaluation samples", least=1)


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """How long it trains, in what batches, and which worker has which part of them."""

    epochs: int = setting(3, "passes over the training set; 0 only evaluates", least=0)
    max_steps: int | None = setting(
        None, "stop after n steps, without changing the schedule", least=1
    )
    schedule_steps: int | None = setting(
        None, "steps of the schedule (default: all epochs)", least=1
    )
    batch_size: int = setting(64, "samples per step, over all workers", least=1)
    local_batch_size: int | None = setting(
        None, "samples per step of each worker, instead of --batch-size", least=1
    )
    eval_batch_size: int = setting(64, "samples per worker in each evaluation batch", least=1)
    accumulation: int = setting(
        1, "micro-batches into which each worker's part is divided", least=1
    )
    split: str = setting(
        "even", "each worker's part of a batch: even, auto (by its speed), or weights like 3,1,0,4"
    )
    seed: int = setting(42, "random seed for weights, sample order and dropout", least=0)


@dataclass(frozen=True, kw_only=True)
class OutputConfig:
    """What is evaluated, printed and recorded."""

    evaluate: Literal["epoch", "end", "never"] = setting("epoch", "when to evaluate")
    metrics: str | None = setting(
        None, "more metrics from the evaluate package: f1:average=macro,./my_metric.py"
    )
    log_every: int = setting(
        0,
        "print the loss every n steps; 0: the first five, and at a terminal every ten seconds",
        least=0,
    )
    cache_dir: Path | None = setting(None, "folder for tokenized data (default: ~/.cache/muster)")
    log_with: tuple[Literal["tensorboard", "wandb"], ...] | None = setting(
        None,
        "also send metrics there; for both: tensorboard,wandb",
        between=",",
    )
    profile: bool = setting(False, "record a trace of steps 3 to 7 of each worker, for Perfetto")
    redirect: bool = setting(False, "the run folder is this run's already", internal=True)


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where each worker computes, and how workers connect."""

    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "device of the model; auto: cuda if there is a GPU"
    )
    backend: Literal["auto", "gloo", "nccl"] = setting(
        "auto", "communication backend; auto: nccl on cuda, gloo on cpu"
    )
    threads: int | None = setting(
        None, "threads per worker (default: its share of the cores)", least=1
    )
    data_workers: int | None = setting(
        None, "processes per worker that prepare batches (default: 2 with a GPU, else 0)", least=0
    )
    timeout_s: float = setting(
        600.0,
        "seconds to wait for others in a collective; loading and saving may take longer",
        positive=True,
    )


@dataclass(frozen=True, kw_only=True)
class TrainConfig(
    RunConfig,
    DeviceConfig,
    OutputConfig,
    CheckpointConfig,
    SyncingConfig,
    LearningConfig,
    BatchConfig,
    TaskConfig,  # first in files and in --help: fields come from the last base to the first
):
    """What is trained, on what, how long, and how its gradients are synchronised.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from self.syncing_problems(self.precision, self.compile)
        yield from self.checkpoint_problems()
        steps = self.schedule_steps
        yield from applying([
            (self.seed >= 2**63, f"--seed must be below 2**63 (got {self.seed})"),
            (self.keep_best is not None and self.evaluate != "epoch",
             (f"--keep-best {self.keep_best} compares the evaluations after each epoch, but "
              f"--evaluate is {self.evaluate}\ntip: give --evaluate epoch")),
            (self.keep_best is not None and self.epochs == 0,
             f"--keep-best {self.keep_best} compares epochs, but --epochs is 0\ntip: leave it out"),
            (self.local_batch_size and self.batch_size != TrainConfig.batch_size, TWO_SIZES),
            (self.end_lr > self.lr > 0, f"--end-lr {self.end_lr} is above --lr {self.lr}"),
            (steps is not None and self.warmup_steps > steps,
             f"--warmup-steps {self.warmup_steps} is more than --schedule-steps {steps}"),
            (self.backend == "nccl" and self.device == "cpu",
             "--backend nccl needs a GPU, but --device is cpu\ntip: use --backend gloo"),
        ])  # fmt: skip
        try:
            weights = self.split_weights() or (1.0,)
        except ValueError:
            yield f"--split {self.split!r}: expected even, auto, or a number per worker: 3,1,0,4"
            return
        if min(weights) < 0 or not math.isfinite(sum(weights)) or sum(weights) <= 0:
            yield f"--split {self.split}: weights must be finite and not negative, and one above 0"

    def split_weights(self) -> tuple[float, ...] | None:
        """One weight per rank; None for an even split, or one that is still to be measured."""
        if self.split in ("even", "auto"):
            return None
        return tuple(float(weight) for weight in self.split.split(","))

    def world_problems(self, world_size: int) -> Iterator[str]:
        """The problems of this configuration on `world_size` workers."""
        weights = self.split_weights()
        yield from applying([
            (self.sync == "single" and world_size > 1,
             (f"--sync single runs one process, but world_size is {world_size}"
              "\ntip: use --sync ddp or --nodes 1")),
            (weights is not None and len(weights) != world_size,
             (f"--split {self.split} has {len(weights or ())} weights, but world_size is "
              f"{world_size}\ntip: give one per worker")),
        ])  # fmt: skip

    def on(self, world_size: int) -> "TrainConfig":
        """This configuration on `world_size` workers, with the total batch size."""
        if self.local_batch_size is None:
            return self
        total = self.local_batch_size * world_size
        return replace(self, batch_size=total, local_batch_size=None)

    @property
    def name(self) -> str:
        """The part of a run's name that says what it does."""
        return f"{self.task}-{self.sync}"

    @property
    def is_resumed(self) -> bool:
        return self.resume is not None

    def inputs(self) -> dict[str, Path]:
        named = {flag(name): getattr(self, name) for name in INPUTS}
        return {name: Path(value).absolute() for name, value in named.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class TrainElsewhere(TrainConfig):
    """The settings of a training whose workers have another Python, with packages of its own.

    That Python is asked whether it has the task, the sync mode and the compressor.
    """

    asks_plugins_here: ClassVar[bool] = False

    def plugins(self) -> dict[str, tuple[str, str]]:
        """The chosen plug-ins that are not files of ours: folder and name, by flag."""
        chosen = {flag(item.name): (item, getattr(self, item.name)) for item in fields(self)}
        return {
            name: (item.metadata["files"], value)
            for name, (item, value) in chosen.items()
            if item.metadata.get("files") in plugins.WORKERS_PLUGINS and value != item.default
            if value not in plugins.own_names(item.metadata["files"])
        }


@dataclass(frozen=True, kw_only=True)
class ByHand(Config):
    """Which worker this is, without a launcher: given on each node, as in the courses."""

    master_ip: str | None = setting(None, "address of rank 0")
    master_port: int | None = setting(None, "port of rank 0 (default: 29500)", port=True)
    world_size: int | None = setting(None, "how many workers", aliases=["--num-nodes"], least=1)
    rank: int | None = setting(
        None, "rank of this worker, from 0; -1: a single process", aliases=["--local-rank"]
    )

    def _problems(self) -> Iterator[str]:
        rank = self.rank or 0
        size = self.world_size
        yield from applying([
            (size is not None and rank >= size,
             (f"--rank {rank} is not below --world-size {size}; ranks go from 0 to "
              f"{(size or 0) - 1}")),
            (rank < -1, f"--rank must be 0 or more, or -1 for a single process (got {rank})"),
        ])  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """For --program bench_collectives: which collectives, and of what sizes.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    min_bytes: int = setting(1024, "smallest size", least=4)
    max_bytes: int = setting(64 * MIB, "largest size")
    factor: float = setting(4.0, "ratio of each size to the one before", least=1.1)
    operations: str = setting("all", "collectives to measure, such as all_reduce,gather")

    def _problems(self) -> Iterator[str]:
        low = self.min_bytes
        top = self.max_bytes
        if top < low:
            yield f"--max-bytes {top} is below --min-bytes {low}"
        for name in self.names():
            if name not in OPERATIONS:
                yield f"--operations: unknown {name!r}{TIP}choose from all, {', '.join(OPERATIONS)}"

    def names(self) -> tuple[str, ...]:
        """The collectives, in order."""
        return OPERATIONS if self.operations == "all" else tuple(self.operations.split(","))

    def sizes(self) -> tuple[int, ...]:
        """Sizes in bytes, in ascending order, each a multiple of 4 bytes."""
        sizes = []
        size = float(self.min_bytes)
        while size <= self.max_bytes:
            sizes.append(int(size) // 4 * 4)
            size *= self.factor
        return tuple(sizes)
