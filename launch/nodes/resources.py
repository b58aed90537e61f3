"""What workers may use on a node: files, processes, shared memory, and their shares of its cores.

A survey sends the text of this file to nodes together with that of `node_facts`, so it needs only
the standard library of Python 3.8.
"""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

THREADS = "OMP_NUM_THREADS"
CPUS = "MUSTER_CPUS"  # of the node's workers that are bound, for worker_main.py: 0,1;2,3
OF_SLURM = "SLURM_CPUS_ON_NODE"
ASK_FOR_MORE = "ask for more with --cpus-per-task, or with GPUs --cpus-per-gpu"
GIVEN_CHARACTERS = 40  # of a value that the user has set, where it is shown
# What programs usually need.
FEW_FILES = 4_096
FEW_PROCESSES = 1_024
PROCESSES_OF_WORKER = 256  # with their threads: those of torch, its loaders and their threads
SHARED_BYTES_OF_WORKER = 256 << 20  # a few batches of images for each of its loaders
MB = 1_000_000


class Cores(NamedTuple):
    """The cores of a node that a run may use."""

    cores: Sequence[Sequence[int]]  # each by its CPUs, which are its hardware threads
    limit: float | None  # CPUs that may be used at a time; None: all

    @property
    def cpus(self) -> int:
        return sum(map(len, self.cores))

    def threads(self, workers: int, parts: Sequence[Sequence[int]] = ()) -> int:
        """The threads of each worker, at least one; `parts`: the CPUs to which each is bound."""
        shares = [self._limited(len(self.cores)) // workers]
        for part in {tuple(part) for part in parts}:
            in_part = sum(not set(part).isdisjoint(core) for core in self.cores)
            shares.append(in_part // sum(tuple(other) == part for other in parts))
        return max(1, min(shares))

    def are_too_few(self, workers: int) -> bool:
        """Whether some of so many workers have to wait for others."""
        return workers > self._limited(self.cpus)

    def words(self, workers: int, parts: Sequence[Sequence[int]] = ()) -> str:
        """What each of so many workers gets."""
        if self.are_too_few(workers):
            return f"{self._limited(len(self.cores))} for {workers} workers, which take turns"
        return f"{self.threads(workers, parts)} for each worker"

    def _limited(self, number: int) -> int:
        return number if self.limit is None else max(1, min(number, int(self.limit)))


def node_resources(question: object) -> dict[str, object]:
    """What the workers of a node have together, for the doctor."""
    return {"limits": limits(), "cores": usable_cores()}


def usable_cores(root: Path = Path("/")) -> Cores:
    """The cores that this process may use.

    A cgroup's quota limits how many CPUs it may use at a time. So does Slurm, which may give a job
    fewer than its processes see.
    """
    can_ask = hasattr(os, "sched_getaffinity")
    cores: dict[object, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)) if can_ask else range(os.cpu_count() or 1):
        siblings = _kernel_text(_topology(cpu, root) / "thread_siblings_list")
        cores.setdefault(siblings or cpu, []).append(cpu)
    of_slurm = os.environ.get(OF_SLURM, "")
    most = [*_quotas(root), *([float(of_slurm)] if of_slurm.isdigit() else [])]
    return Cores(list(cores.values()), min(most, default=None))


def limits(root: Path = Path("/")) -> dict[str, int | None]:
    """The most that workers on this node may have; None: no limit, or none that is known.

    `files` are those that a process may open, `processes` those of this user or this container with
    their threads, and the bytes those of /dev/shm, through which loader workers pass batches.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    # root has no such limit, but for that of a container
    most = [processes] if os.geteuid() and processes != resource.RLIM_INFINITY else []
    numbers = [_kernel_text(folder / "pids.max") for folder in _cgroups("pids", root)]
    most += [int(number) for number in numbers if number.isdigit()]
    shared = free = None
    with contextlib.suppress(OSError):  # macOS has no such folder
        disk = os.statvfs("/dev/shm")
        shared = disk.f_blocks * disk.f_frsize
        free = disk.f_bavail * disk.f_frsize
    return {
        "files": None if files == resource.RLIM_INFINITY else files,
        "processes": min(most, default=None),
        "shared_bytes": shared,
        "free_shared_bytes": free,
    }


def too_low(found: Mapping[str, int | None], workers: int = 1) -> Iterator[str]:
    """A line for each of a node's `limits` that is too low for so many workers on its node."""
    files = found["files"]
    if files is not None and files < FEW_FILES:
        yield (
            f"a process may open {files} files at most, which data loaders may exceed; raise "
            "nofile in /etc/security/limits.conf"
        )
    processes = found["processes"]
    if processes is not None and processes < max(FEW_PROCESSES, workers * PROCESSES_OF_WORKER):
        yield (
            f"{processes} processes and threads at most; raise nproc in /etc/security/limits.conf, "
            "or --pids-limit of the container"
        )
    shared = found["shared_bytes"]
    free = found["free_shared_bytes"]
    if shared is not None and free is not None and free < workers * SHARED_BYTES_OF_WORKER:
        yield (
            f"/dev/shm has {free / MB:.0f} of {shared / MB:.0f} MB free: loader "
            "workers pass batches through it, and a full one ends them with a bus error; "
            "docker run --shm-size 8g, or remove what others have left in it"
        )


def _quotas(root: Path) -> Iterator[float]:
    """The quotas of this process's cgroup and of those above it, in CPUs."""
    for folder in _cgroups("cpu", root):
        of_v1 = [_kernel_text(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
        words = _kernel_text(folder / "cpu.max").split() or of_v1
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]):
            yield int(words[0]) / int(words[1])  # without a quota the first is max, or -1


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of this process's cgroup and of those above it; of version 1 and 2."""
    for line in _kernel_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controller if controllers else "")
            own = Path(path.lstrip("/"))  # in a container it may be the host's: the mount is ours
            yield from (mount / folder for folder in (own, *own.parents))


def share_cores(
    env: dict[str, str],
    ranks: Sequence[int],
    machine_ranks: Sequence[int],
    bind: str | None,
    *,
    has_gpus: bool,
) -> str:
    """Give each of a node's `ranks` its share of the cores, through `env`; return it in words.

    `machine_ranks`: with those of other nodes that the machine simulates. What the user has set
    stays. Without `bind` workers are bound only where Slurm has bound this process to the cores of
    the job. Those with GPUs are not: which cores are near is not known.
    """
    found = usable_cores()
    workers = len(machine_ranks)
    is_in_job = OF_SLURM in os.environ
    # if this process may use more, other jobs may use some of them
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
        shown = given[:GIVEN_CHARACTERS]
        words += f"; {THREADS} is {shown if shown.isprintable() else ascii(shown)}"
    return words


def parts_of(
    cores: Sequence[Sequence[int]], workers: int, bind: str, root: Path = Path("/")
) -> list[list[int]]:
    """The CPUs of each worker, as `--bind` says; empty if each may use all.

    Workers beside each other get cores beside each other, of the same socket where that is
    possible. Where cores are too few, each worker gets a CPU, if there are enough.
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
    """What the kernel says in a file; empty if it does not."""
    try:
        return path.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
