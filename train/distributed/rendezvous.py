"""All workers find each other, or each reports who is missing and what to check.

1. A store is opened at MASTER_ADDR:MASTER_PORT. torchrun's agent serves it, or rank 0 if workers
were started by hand: then it listens only at MASTER_ADDR, if that is an address. Its keys have
the attempt as a prefix, since torchrun keeps a store across restarts, and keys of an earlier
attempt must not be read. The prefix also has a secret of the attempt, which agents give to their
workers so that strangers do not know the keys, and the number of the meeting in this process. The
store is kept for the next meeting: otherwise an early rank would find the store that rank 0 is
about to close.

2. Each rank claims its number, describes its machine, and polls until all have done so. A number
that is claimed twice, or another world size, is an error that names both processes. A rank that
gives up first writes the reason into the store, so that all ranks end with the same message.

3. From the same list each rank computes the same result: device, backend, neighbours, cores.

4. The process group is made with the time limit for joining, and then gets that for collectives.

5. At the end all leave together, rank 0 last, as it may serve the store. A rank that fails closes
its connections at once, so that the others notice, and then finds out through the store who failed
first (lost_peers.py). A rank that leaves while others do not also closes its connections, after a
while, since ranks that wait for it in a collective would wait in vain.
"""

import json
import os
import socket
import stat
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from threading import Thread, Timer

import torch
import torch.distributed as dist

from muster.errors import MusterError
from muster.orderly_stop import StoppedCleanly
from muster.worker import gloo_threads

from . import placement
from .address import bind_own_address, choose_interface, wait_for_address
from .agreement import (
    DISK_PATIENCE_S,
    PATIENCE_S,
    broadcast_result,
    gather_results,
    set_timeout,
    wait_for_all,
)
from .lost_peers import explained, note_left, others_failed
from .placement import WorkerInfo
from .world import World

ANNOUNCE_S = 10.0  # after which rank 0 prints what it is waiting for
NOTIFY_S = 10.0  # how long a rank that gives up stays, so that others can read why
ABORT_S = 5.0  # how long a rank that fails waits for the end of its NCCL kernels
LEFT_ALONE_S = 5.0  # by then the others have received everything that a rank sent before it left
LEAVE_S = 60.0  # how long rank 0 waits for the others to leave, when all is done
# The stores of this process, by place and attempt, with the number of the next meeting.
_STORES: dict[tuple[str, int, int], tuple[dist.TCPStore, Iterator[int]]] = {}


@dataclass(frozen=True)
class Peers:
    """The workers that have met: their world, now complete, and the store they share."""

    world: World
    store: dist.Store
    workers: Sequence[WorkerInfo]
    device: torch.device

    @property
    def leads_host(self) -> bool:
        """Whether this rank does the work that is done once per host."""
        places = [worker.machine_key for worker in self.workers]
        return places.index(places[self.world.rank]) == self.world.rank

    def prepare(self, make: Callable[[], None], is_made: Callable[[], bool]) -> None:
        """Let rank 0 `make` something on disk while the others wait; they read it afterwards.

        If a host does not see what rank 0 made (no shared file system), one of its ranks makes it
        there. There are no locks. Rank 0, whose output people see, prints what all are waiting for.

        Raises:
            PeerFailed: another rank could not make it; on this rank `make`'s own error is raised.
        """

        def make_on_host() -> None:
            if self.leads_host and not is_made():
                make()

        rank = self.world.rank
        size = self.world.world_size
        announces = rank == 0 and size > 1
        with _announced("waiting for rank 0, which is preparing the data", announces=announces):
            broadcast_result(rank, size, make, DISK_PATIENCE_S)
        with _announced(
            "waiting for hosts that are preparing their own copy of the data", announces=announces
        ):
            gather_results(size, make_on_host, DISK_PATIENCE_S)


@contextmanager
def _announced(text: str, *, announces: bool) -> Iterator[None]:
    """Print `text` if this context lasts longer than `ANNOUNCE_S`."""
    timer = Timer(ANNOUNCE_S, print, [text], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if announces:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Meeting:
    """How workers meet, and how long they wait for each other."""

    device: str = "auto"  # cpu, cuda, or auto: cuda if every worker has one
    backend: str = "auto"  # gloo, nccl, or auto: nccl on cuda
    timeout_s: float = 600.0  # how late a rank may be for a collective, once all have met
    join_timeout_s: float = 300.0  # how long after one another workers may start


@contextmanager
def meet(world: World, meeting: Meeting) -> Iterator[Peers]:
    """A context with the process group of all workers, from their meeting to its end.

    Raises:
        MusterError: an address, port, worker or GPU is missing after `join_timeout_s`.
        PeerFailed: another rank is gone, or hangs; it is named if it is known.
    """
    own_info = placement.worker_info(world, placement.visible_gpus(meeting.device))
    if world.world_size == 1:
        device = placement.choose_device(meeting.device, world, [own_info])
        yield Peers(world, dist.HashStore(), [own_info], device)
        return
    store = _open_store(world, meeting.join_timeout_s)
    try:
        workers = _gather_workers(world, own_info, store, meeting.join_timeout_s)
    except MusterError as error:
        _give_up(world, store, str(error))
        raise
    choose_interface(world)
    device = placement.choose_device(meeting.device, world, workers, meeting.backend)
    backend = placement.choose_backend(meeting.backend, device)
    others = _connections()
    dist.init_process_group(
        backend,
        # NCCL's connections are made here, within the time to join, not at the first collective.
        device_id=device if backend == "nccl" else None,
        store=dist.PrefixStore("group", store),
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=meeting.join_timeout_s),
    )
    connections = _connections().keys() - others.keys()
    set_timeout(timedelta(seconds=meeting.timeout_s))
    is_closed = False
    try:
        if not world.agent_store:  # torchrun tells who shares a node; otherwise, host names do
            world = placement.with_local_ranks(world, workers)
        yield Peers(world, store, workers, device)
        _leave_together(world, store, connections)
    except StoppedCleanly:
        try:
            _leave_together(world, store, connections)
        except RuntimeError:  # everything is on the disk, whatever the others do
            is_closed = True
            _close_at_once(connections)
        raise
    except BaseException as error:
        is_closed = True
        _close_at_once(connections)  # ranks that wait for this one get an error at once
        reason = explained(
            error, world, [worker.host for worker in workers], store, meeting.timeout_s
        )
        if reason is error:
            raise
        raise reason from error
    finally:
        if not is_closed and dist.is_initialized():
            dist.destroy_process_group()
        gloo_threads.wait()  # `worker_main.py` does this, too, but may not have started this worker


def _connections() -> dict[int, int]:
    """The file descriptors of this process's TCP connections, by inode."""
    connections = dict[int, int]()
    for fd in (int(path.name) for path in Path("/dev/fd").iterdir()):
        with suppress(OSError):  # closed by now, or not connected
            status = os.fstat(fd)
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(fd)) as copy:
                    copy.getpeername()
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        connections[status.st_ino] = fd
    return connections


def _shut_down(connections: Collection[int]) -> None:
    """Shut down these connections of gloo; ranks that wait for this one then get an error.

    `destroy_process_group` does not close them while a DDP exists, which also refers to the group.
    """
    for inode, fd in _connections().items():
        if inode in connections:
            with suppress(OSError), socket.socket(fileno=os.dup(fd)) as copy:
                copy.shutdown(socket.SHUT_RDWR)


def _close_at_once(connections: Collection[int]) -> None:
    """Close this rank's connections to the others, whatever they do.

    `destroy_process_group` lets NCCL's kernels end first, but they wait for all ranks. An abort
    ends them. It can itself wait for other work of the device, so it is given a limited time.
    """
    if not dist.is_initialized():
        return
    if dist.get_backend() != "nccl":
        _shut_down(connections)
        dist.destroy_process_group()
        return
    abort = Thread(target=dist.distributed_c10d._abort_process_group, name="abort", daemon=True)
    abort.start()
    abort.join(ABORT_S)


def _open_store(world: World, timeout_s: float) -> dist.Store:
    key = (world.master_addr, world.master_port, world.attempt)
    if key not in _STORES:
        bound = None
        if not world.agent_store and world.is_main:
            bound = bind_own_address(world)
        elif not world.is_main:
            wait_for_address(world, timeout_s)
        store = dist.TCPStore(
            world.master_addr,
            world.master_port,
            is_master=world.is_main and not world.agent_store,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,  # `_gather_workers` waits, since it can name missing ranks
            # torch itself would listen at all addresses of the machine
            master_listen_fd=None if bound is None else bound.detach(),
        )
        _STORES[key] = store, count()
    store, meetings = _STORES[key]
    prefix = f"muster/{world.store_secret}/attempt_{world.attempt}/meeting_{next(meetings)}"
    return dist.PrefixStore(prefix, store)


def _gather_workers(
    world: World, own_info: WorkerInfo, store: dist.Store, timeout_s: float
) -> list[WorkerInfo]:
    """Each rank's description of itself, in rank order, once all have registered."""
    _register(world, store)
    store.set(f"here/{world.rank}", json.dumps(asdict(own_info)))
    keys = [f"here/{rank}" for rank in range(world.world_size)]
    started = time.monotonic()
    announced = False
    while not store.check(keys):
        waited = time.monotonic() - started
        if store.check(["given_up"]):  # end with the same message
            raise MusterError(store.get("given_up").decode())
        if waited > timeout_s:
            raise MusterError(
                f"after {timeout_s:.0f} s, still missing: rank {_missing(store, keys)} (of "
                f"{world.world_size})"
                "\ntip: check that it was started, with the same --world-size and its own --rank"
            )
        if waited > ANNOUNCE_S and world.is_main and not announced:
            print(f"waiting for rank {_missing(store, keys)}", file=sys.stderr, flush=True)
            announced = True
        time.sleep(0.02 if waited < 5 else 0.2)
    return [WorkerInfo(**json.loads(store.get(key))) for key in keys]


def _register(world: World, store: dist.Store) -> None:
    """Refuse common mistakes in starting workers by hand: a duplicate rank, two world sizes."""
    store.add("registered", 1)
    own = f"rank {world.rank} on {world.host} (pid {os.getpid()})"
    agreed = store.compare_set("world_size", "", f"{world.world_size} {own}").decode()
    size, _, other = agreed.partition(" ")
    if size != str(world.world_size):
        raise MusterError(
            f"{own} has world size {world.world_size}, but {other} has {size}"
            "\ntip: set the same --world-size or WORLD_SIZE on every node"
        )
    # containers may share a host name, and pids
    claim = f"pid {os.getpid()} on {world.host} {uuid.uuid4().hex}"
    holder = store.compare_set(f"claimed/{world.rank}", "", claim).decode()
    if holder != claim:
        first, second = (words.rpartition(" ")[0] for words in (holder, claim))
        raise MusterError(
            f"rank {world.rank} was started twice: {first}, and {second}"
            f"\ntip: give each worker its own --rank or RANK, from 0 to {world.world_size - 1}"
        )


def _give_up(world: World, store: dist.Store, message: str) -> None:
    """Tell all registered ranks; the rank that serves the store stays until they have read it."""
    store.set("given_up", message)
    store.add("notified", 1)
    deadline = time.monotonic() + NOTIFY_S  # a registered rank may have been killed, or hang
    serves = world.is_main or world.agent_store
    while serves and time.monotonic() < deadline:
        if store.add("notified", 0) >= store.add("registered", 0):
            break
        time.sleep(0.02)


def _missing(store: dist.Store, keys: Sequence[str]) -> str:
    return ", ".join(key.rpartition("/")[2] for key in keys if not store.check([key]))


def _leave_together(world: World, store: dist.Store, connections: Collection[int]) -> None:
    """Leave together: no rank closes its connections while another still uses them.

    Some ranks may still be saving. Rank 0 leaves last, since it may serve the store through which
    the others report that they leave.
    """
    if world.is_led or world.agent_store:
        _wait_for_leavers(world, store, connections)
    else:  # no agent ends this rank if another one dies: only its connections show that
        wait_for_all(world.world_size, DISK_PATIENCE_S)
    ranks = range(world.world_size)
    store.set(f"done/{world.rank}", "")
    store.wait([f"done/{rank}" for rank in ranks], timedelta(seconds=PATIENCE_S))
    store.set(f"left/{world.rank}", "")
    if world.is_main:
        with suppress(RuntimeError):  # a rank that does not report it no longer needs the store
            store.wait([f"left/{rank}" for rank in ranks], timedelta(seconds=LEAVE_S))


def _wait_for_leavers(world: World, store: dist.Store, connections: Collection[int]) -> None:
    """Wait until every rank leaves, and close gloo's connections before that if some take long.

    Raises:
        RuntimeError: another rank has failed, perhaps by waiting for this one in a collective.
    """
    began = time.monotonic()
    store.add("leaving", 1)
    has_closed = False
    while store.add("leaving", 0) < world.world_size:
        waited_s = time.monotonic() - began
        if waited_s > LEFT_ALONE_S and not has_closed:
            has_closed = True
            note_left(world.rank, store)
            if dist.is_initialized() and dist.get_backend() == "gloo":
                _shut_down(connections)
        if waited_s > DISK_PATIENCE_S or others_failed(store):
            # in gloo's words, by which lost_peers.py recognizes a consequence
            raise RuntimeError("connection closed by peer")
        time.sleep(0.02 if waited_s < LEFT_ALONE_S else 0.2)
