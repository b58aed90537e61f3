"""The settings of the bench of collectives, as flags of every command that starts it."""

from collections.abc import Iterator
from dataclasses import dataclass

from configs.settings.fields import Config, setting

OPERATIONS = (
    "sendrecv", "broadcast", "gather", "scatter", "all_gather", "reduce_scatter", "all_reduce"
)  # fmt: skip
MIB = 2**20
# The trainer's settings that also apply to a measurement of the network.
OF_MEASUREMENT = frozenset(
    ("device", "backend", "threads", "timeout_s", "join_timeout_s")
    + ("logs_dir", "run_id", "overwrite", "quiet", "redirect")
)


@dataclass(frozen=True, kw_only=True)
class BenchConfig(Config):
    """For --program bench_collectives: which collectives, and of what sizes.

    Raises:
        UsageError: on creation; one line for every setting that is wrong.
    """

    min_bytes: int = setting(1024, "smallest size", least=4)
    max_bytes: int = setting(64 * MIB, "largest size")
    factor: float = setting(4.0, "factor from one size to the next", least=1.1)
    operations: str = setting("all", "collectives to measure, such as all_reduce,gather")

    def _problems(self) -> Iterator[str]:
        low, top, order = self.min_bytes, self.max_bytes, "from the smallest to the largest"
        if top < low:
            yield f"--max-bytes {top} is below --min-bytes {low}; sizes go {order}"
        for name in self.names():
            if name not in OPERATIONS:
                yield f"--operations: unknown {name!r}; known: all, {', '.join(OPERATIONS)}"

    def names(self) -> tuple[str, ...]:
        """The collectives, in order."""
        return OPERATIONS if self.operations == "all" else tuple(self.operations.split(","))

    def sizes(self) -> tuple[int, ...]:
        """Sizes in bytes, ascending, multiples of 4 bytes."""
        found, size = [], float(self.min_bytes)
        while size <= self.max_bytes:
            found.append(int(size) // 4 * 4)
            size *= self.factor
        return tuple(found)
