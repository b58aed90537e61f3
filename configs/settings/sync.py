"""How the workers' models stay equal: the sync mode, what it may leave out, and how often."""

from collections.abc import Iterator
from dataclasses import dataclass

from configs import plugins
from configs.settings.fields import gradients, sending, sharing

COMPRESSED = ("all_reduce", "ddp", "accelerate")  # can send fewer bytes than the gradients
REMEMBERING = ("int8", "powersgd", "topk")  # add what they left out to the next gradient
PARTED = ("zero1", "fsdp")  # each worker has a part of the optimizer's state


@dataclass(frozen=True, kw_only=True)
class SyncingConfig:
    """How gradients, or the weights themselves, become equal on all workers."""

    sync: str = sharing(
        "ddp", "how gradients are averaged, a file of train/sync/modes/", files="train.sync.modes"
    )
    bucket_mb: float | None = sending(
        None, "MiB per collective; 0: one per parameter (default: the mode's own)", least=0
    )
    overlap: bool = sending(
        True, "send gradients while others are computed (all_reduce, gather_scatter, zero1)"
    )
    sparse_rows: bool = sending(
        True, "send only the used rows of embeddings (all_reduce, gather_scatter, zero1)"
    )
    compress: str = gradients(
        "none",
        "compress gradients: none, or a file of train/sync/compression/",
        files="train.sync.compression",
    )
    compress_rank: int = gradients(4, "rank of PowerSGD's matrices", least=1)
    compress_share: float = gradients(
        0.01, "share of the gradients' values that topk sends", positive=True
    )
    sync_every: int = gradients(16, "steps that local_sgd takes between two averages", least=1)
    outer_lr: float = gradients(
        1.0, "local_sgd's step towards the average; DiLoCo: 0.7", positive=True
    )
    outer_momentum: float = gradients(0.0, "local_sgd's Nesterov momentum; DiLoCo: 0.9", share=True)

    equalize_every: int = sharing(
        0, "every n-th step measure how much parameters differ, and make them equal; "
        "0: never", least=0
    )  # fmt: skip

    def syncing_problems(self, precision: str, compiles: bool) -> Iterator[str]:
        """A line for each wrong setting among these, together with --precision and --compile."""
        if self.compress_share > 1:
            yield f"--compress-share must be at most 1 (got {self.compress_share})"
        if self.sync == "local_sgd" and precision == "fp16":
            yield (
                "--sync local_sgd lets each worker step alone, but --precision fp16 skips a step "
                "where any worker's gradient overflows; use --precision bf16"
            )
        if self.sync in PARTED and precision == "fp16":
            yield (
                f"--sync {self.sync} leaves each worker a part of every gradient, but --precision "
                "fp16 skips a step where any part overflows; use --precision bf16"
            )
        if self.equalize_every and self.sync in (*PARTED, "local_sgd"):
            yield (
                f"--equalize-every does not go with --sync {self.sync}, whose workers do not step "
                "copies of one model; use --sync ddp, or leave it out"
            )
        if self.sync == "fsdp" and compiles:
            yield "--compile does not go with --sync fsdp; use --sync zero1"
        if self.compress in plugins.names("train.sync.compression"):
            yield from self._compression_problems(precision)

    def _compression_problems(self, precision: str) -> Iterator[str]:
        if self.sync == "single":
            yield f"--compress {self.compress}: --sync single sends nothing to compress"
        elif self.sync not in COMPRESSED:
            yield (
                f"--compress {self.compress} does not go with --sync {self.sync}; "
                "use --sync all_reduce"
            )
        elif self.sync == "all_reduce" and (self.bucket_mb == 0 or not self.overlap):
            yield (
                f"--compress {self.compress} works on buckets in the backward pass; leave out "
                f"{'--no-overlap' if not self.overlap else '--bucket-mb 0'}"
            )
        if precision == "fp16" and self.compress in REMEMBERING:
            yield (
                f"--compress {self.compress} remembers what it left out, but --precision fp16 "
                "scales each step's gradient by another number; use --precision bf16"
            )
