"""How the workers' models stay equal: the sync mode, what it may leave out, and how often."""

from collections.abc import Iterator
from dataclasses import dataclass

from configs.settings.fields import applying, setting

# These modes can send fewer bytes than the gradients have.
COMPRESSED = ("all_reduce", "ddp", "accelerate")
PARTED = ("zero1", "fsdp")  # each worker has a part of the optimizer's state


@dataclass(frozen=True, kw_only=True)
class SyncingConfig:
    """How gradients, or the weights themselves, become equal on all workers."""

    sync: str = setting("ddp", "how gradients are averaged", files="train.sync.modes")
    bucket_mb: float | None = setting(
        None, "size of a gradient bucket; 0: one per parameter (default: the mode's own)", least=0
    )
    overlap: bool = setting(
        True, "send gradients during the backward pass (all_reduce, gather_scatter, zero1)"
    )
    sparse_rows: bool = setting(
        True, "send only the embedding rows in use (all_reduce, gather_scatter, zero1)"
    )
    compress: str = setting(
        "none",
        "how gradients are compressed",
        files="train.sync.compression",
    )
    compress_rank: int = setting(4, "rank of PowerSGD's matrices", least=1)
    sync_every: int = setting(16, "steps between two averages of local_sgd", least=1)
    outer_lr: float = setting(1.0, "outer learning rate of local_sgd; DiLoCo: 0.7", positive=True)
    outer_momentum: float = setting(
        0.0, "outer Nesterov momentum of local_sgd; DiLoCo: 0.9", share=True
    )

    equalize_every: int = setting(
        0, "steps after which to measure how much parameters differ, and make them equal; "
        "0: never", least=0
    )  # fmt: skip

    def syncing_problems(self, precision: str, compiles: bool) -> Iterator[str]:
        """A line for each setting here that is wrong or does not fit --precision or --compile."""
        sync = self.sync
        is_half = precision == "fp16"
        compress = f"--compress {self.compress}"
        compresses = self.compress != "none"
        in_buckets = self.bucket_mb != 0 and self.overlap
        yield from applying([
            (is_half and sync == "local_sgd",
             ("--sync local_sgd does not work with --precision fp16: all workers must skip a step "
              "if any gradient overflows, but each steps alone\ntip: use --precision bf16")),
            (is_half and sync in PARTED,
             (f"--sync {sync} does not work with --precision fp16: all workers must skip a step if "
              "any gradient overflows, but each has only a part\ntip: use --precision bf16")),
            (self.equalize_every and sync in (*PARTED, "local_sgd"),
             (f"--equalize-every does not work with --sync {sync}, whose workers do not have equal "
              "models\ntip: use --sync ddp, or leave it out")),
            (compiles and sync == "fsdp",
             "--compile does not work with --sync fsdp\ntip: use --sync zero1"),
            (compresses and sync == "single",
             f"{compress} has no effect with --sync single\ntip: leave it out"),
            (compresses and sync not in (*COMPRESSED, "single"),
             f"{compress} does not work with --sync {sync}\ntip: use --sync all_reduce"),
            (compresses and sync == "all_reduce" and not in_buckets,
             (f"{compress} needs buckets that are sent during the backward pass\ntip: leave out "
              f"{'--bucket-mb 0' if self.overlap else '--no-overlap'}")),
            (is_half and self.compress == "powersgd",
             (f"{compress} carries its error to the next step, but --precision fp16 scales the "
              "gradients of each step differently\ntip: use --precision bf16")),
        ])  # fmt: skip
