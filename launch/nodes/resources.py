"""What workers may use on a node: open files, shared memory, and their shares of its cores.

A survey sends the text of this file to nodes together with that of `node_facts`, so it may use only
the standard library of Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

THREADS = "OMP_NUM_THREADS"
CPUS = "MUSTER_CPUS"  # the CPUs of each bound worker on the node, for worker_main.py: 0,1;2,3
ASK_FOR_MORE = "request more with --cpus-per-task, or for jobs with GPUs --cpus-per-gpu"
VALUE_CHARACTERS = 40  # shown of a value that the user has set
# Some programs close each file that they might have open, one by one.
MOST_FILES = 1_048_576
SHARED_BYTES_OF_WORKER = 256 << 20  # a few batches of images for each of its loaders
MB = 1_000_000


class Cores(NamedTuple):
    """The cores of a node that a run may use."""

    cores: Sequence[Sequence[int]]  # the CPUs of each core, which are its hardware threads
    limit: float | None  # CPUs that may be used at a time; None: all

    @property
    def cpus(self) -> int:
        return sum(map(len, self.cores))

    def threads(self, workers: int, parts: Sequence[Sequence[int]] = ()) -> int:
        """The threads for each worker, at least one; `parts`: the CPUs to which each is bound."""
        shares = [self._limited(len(self.cores)) // workers]
        for part in {tuple(part) for part in parts}:
            in_part = sum(not set(part).isdisjoint(core) for core in self.cores)
            shares.append(in_part // sum(tuple(other) == part for other in parts))
        return max(1, min(shares))

    def are_too_few(self, workers: int) -> bool:
        """Whether there are fewer CPUs than workers, so that some workers wait for others."""
        return workers > self._limited(self.cpus)

    def words(self, workers: int, parts: Sequence[Sequence[int]] = ()) -> str:
        """What each of `workers` workers gets, in words."""
        if self.are_too_few(workers):
            number = self._limited(len(self.cores))
            return f"{workers} workers share {number} core{'s' * (number > 1)}"
        return f"{self.threads(workers, parts)} for each worker"

    def _limited(self, number: int) -> int:
        return number if self.limit is None else max(1, min(number, int(self.limit)))


class SharedMemory(NamedTuple):
    """The size of /dev/shm, and its free space."""

    bytes: int
    free_bytes: int


def node_resources(question: dict[str, str]) -> dict[str, object]:
    """What the workers on a node share, for the doctor."""
    return {"shared_memory": shared_memory(), "cores": usable_cores(question.get("job_cpus", ""))}


def usable_cores(job_cpus: str = "", root: Path = Path("/")) -> Cores:
    """The cores that this process may use.

    A cgroup's quota limits how many CPUs it may use at a time. So does a scheduler, which may give
    a job fewer CPUs than its processes see; `job_cpus` names the variable with their number.
    """
    can_ask = hasattr(os, "sched_getaffinity")
    cores: dict[object, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if can_ask else range(os.cpu_count() or 1):
        siblings = _kernel_text(_topology(cpu, root) / "thread_siblings_list")
        cores.setdefault(siblings or cpu, []).append(cpu)
    of_job = os.environ.get(job_cpus, "")
    most = [*_quotas(root), *([float(of_job)] if of_job.isdigit() else [])]
    return Cores(list(cores.values()), min(most, default=None))


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the hard limit allows.

    Shells and services begin with a low soft limit for the sake of programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # macOS has an additional limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def shared_memory() -> SharedMemory | None:
    """This machine's shared memory; None if it has none, as on macOS."""
    try:
        disk = os.statvfs("/dev/shm")
    except OSError:
        return None
    return SharedMemory(disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize)


def too_little_shared(memory: SharedMemory | None, workers: int) -> str:
    """A line if a node's `shared_memory` is too small for this number of workers, or ""."""
    if memory is None or memory.free_bytes >= workers * SHARED_BYTES_OF_WORKER:
        return ""
    return (
        f"/dev/shm has {memory.free_bytes / MB:.0f} of {memory.bytes / MB:.0f} MB free, and "
        "data loaders that fill it die with a bus error; start the container with --shm-size 8g, "
        "or remove old files from /dev/shm"
    )


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of this process's cgroup and of the cgroups above it, in CPUs."""
    for folder in _cpu_cgroups(root):
        of_v1 = [_kernel_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        words = _kernel_text(folder / "cpu.max").split() or of_v1
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])  # without a quota the first is max, or -1


def _cpu_cgroups(root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of the cgroups above it, in versions 1 and 2."""
    for line in _kernel_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or "cpu" in controllers.split(","):
            mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
            own = Path(path.lstrip("/"))  # in a container perhaps the host's, but the mount is ours
            yield from (mount / folder for folder in (own, *own.parents))


def share_cores(
    env: dict[str, str],
    ranks: Sequence[int],
    machine_ranks: Sequence[int],
    bind: str | None,
    *,
    has_gpus: bool,
    job_cpus: str = "",
) -> str:
    """Give each of a node's `ranks` its share of the cores through `env`; return a description.

    `machine_ranks` also has the ranks of other nodes that the machine simulates. A number of
    threads that the user has set is kept. Without `bind`, workers are bound only if a scheduler has
    bound this process to the cores of the job. Workers with GPUs are not bound then, since it is
    not known which cores are near their GPUs. For `job_cpus`, see `usable_cores`.
    """
    found = usable_cores(job_cpus)
    workers = len(machine_ranks)
    is_in_job = job_cpus in os.environ
    # if this process sees more CPUs than the job has, other jobs may use some of them
    has_own = is_in_job and found.limit is not None and found.cpus <= found.limit
    how = bind or ("cores" if has_own and not has_gpus else "none")
    parts = parts_of(found.cores, workers, how) if hasattr(os, "sched_setaffinity") else []
    words = found.words(workers, parts)
    if is_in_job and found.are_too_few(workers):
        words += f"; {ASK_FOR_MORE}"
    env.pop(CPUS, None)
    if parts:
        own = [parts[machine_ranks.index(rank)] for rank in ranks]
        env[CPUS] = ";".join(",".join(map(str, cpus)) for cpus in own)
        words += f", bound to {'its socket' if how == 'socket' else 'them'}"
    elif bind not in (None, "none"):
        words += f"; --bind {bind} has no effect"
    threads = str(found.threads(workers, parts))
    given = env.setdefault(THREADS, threads)
    if given != threads:
        shown = given[:VALUE_CHARACTERS]
        words += f"; {THREADS} is {shown if shown.isprintable() else ascii(shown)}"
    return words


def parts_of(
    cores: Sequence[Sequence[int]], workers: int, bind: str, root: Path = Path("/")
) -> list[list[int]]:
    """The CPUs of each worker, according to `--bind`; empty if each worker may use all CPUs.

    Consecutive workers get adjacent cores, if possible on the same socket. If there are too few
    cores, each worker gets a CPU, if there are enough CPUs.
    """
    if bind == "none":
        return []
    sockets = {
        core[0]: _kernel_text(_topology(core[0], root) / "physical_package_id") for core in cores
    }
    ordered = sorted(cores, key=lambda core: (sockets[core[0]], core))
    groups: list[Sequence[Sequence[int]]]
    if bind == "socket":
        each = [list(group) for _, group in groupby(ordered, lambda core: sockets[core[0]])]
        if len(each) == 1:
            return []
        groups = [each[worker * len(each) // workers] for worker in range(workers)]
    else:
        if len(ordered) < workers:
            ordered = [[cpu] for core in ordered for cpu in core]
        if not 1 < workers <= len(ordered):
            return []
        ends = [worker * len(ordered) // workers for worker in range(workers + 1)]
        groups = [ordered[ends[worker] : ends[worker + 1]] for worker in range(workers)]
    return [[cpu for core in group for cpu in core] for group in groups]


def _topology(cpu: int, root: Path) -> Path:
    return root / f"sys/devices/system/cpu/cpu{cpu}/topology"


def _kernel_text(path: Path) -> str:
    """The text of one of the kernel's files; empty if it cannot be read."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
