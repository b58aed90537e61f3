"""All workers find each other, or each says who is missing and what to check."""

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

import psutil
import torch
import torch.distributed as dist

from configs.errors import MusterError
from train.exits import PeerFailed
from train.world import World

# Preparing data (a download, tokenising) may take far longer than a collective.
PREPARE_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Peers:
    """The workers that have met: their world, now complete, and the store they share."""

    world: World
    store: dist.Store
    threads: int  # this worker's share of the cores it may use
    host_leader: int  # the lowest rank on this host: it does what is done once per host

    @property
    def leads_host(self) -> bool:
        return self.world.rank == self.host_leader

    def agree(self, name: str, choose: Callable[[], str], *, chooser: bool | None = None) -> str:
        """What the chooser (rank 0, unless said otherwise) chose, on every rank.

        Raises:
            PeerFailed: `choose` failed on the chooser, where its own error is raised.
        """
        if self.world.is_main if chooser is None else chooser:
            try:
                answer = choose()
            except BaseException as error:
                self.store.set(name, json.dumps({"failed": str(error), "host": self.world.host}))
                raise
            self.store.set(name, json.dumps({"answer": answer}))
            return answer
        self.store.wait([name], timedelta(seconds=PREPARE_TIMEOUT_S))
        said = json.loads(self.store.get(name))
        if "failed" in said:
            raise PeerFailed(f"a worker on {said['host']} could not go on: {said['failed']}")
        return str(said["answer"])

    def prepare(self, make: Callable[[], None], is_made: Callable[[], bool]) -> None:
        """Have rank 0 `make` something on disk while the others wait, then read it.

        Where a host does not see what rank 0 made (no shared file system), one of its ranks
        makes it there. Nothing is locked.
        """

        def first() -> str:
            make()
            return "made"

        def again() -> str:
            if not is_made():
                make()
            return "made"

        self.agree("prepared", first)
        self.agree(f"prepared/{self.host_leader}", again, chooser=self.leads_host)


@contextmanager
def meet(world: World, backend: str, timeout_s: float) -> Iterator[Peers]:
    """The process group of all workers, from their meeting to its end.

    Raises:
        MusterError: an address, port or worker that is not there, after `timeout_s` seconds.
    """
    if world.world_size == 1:
        yield Peers(world, dist.HashStore(), fair_share(0, [_presence(world)]), 0)
        return
    store = _open_store(world, timeout_s)
    roll = _call_the_roll(world, store, timeout_s)
    _choose_interface(world)
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", store),
        rank=world.rank,
        world_size=world.world_size,
        timeout=timedelta(seconds=timeout_s),
    )
    try:
        if not world.agent_store:  # torchrun has said who shares a node; by hand, the hosts do
            world = _with_neighbours(world, [str(one["host"]) for one in roll])
        hosts = [(one["machine"], one["host"]) for one in roll]
        leader = hosts.index(hosts[world.rank])
        yield Peers(world, store, fair_share(world.rank, roll), leader)
        _part(world, store)
    finally:
        dist.destroy_process_group()


def _open_store(world: World, timeout_s: float) -> dist.Store:
    if not world.agent_store and world.is_main:
        _check_own_address(world)
    elif not world.is_main:
        _wait_for_address(world, timeout_s)
    store = dist.TCPStore(
        world.master_addr,
        world.master_port,
        is_master=world.is_main and not world.agent_store,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=False,  # the roll call waits, since it can name who is missing
    )
    return dist.PrefixStore(f"muster/attempt_{world.attempt}", store)


def _check_own_address(world: World) -> None:
    """Rank 0 listens on --master-ip, so it must be an address of this machine, and free."""
    address = f"{world.master_addr}:{world.master_port}"
    try:
        family, kind, *_, where = socket.getaddrinfo(
            world.master_addr, world.master_port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except socket.gaierror:
        raise MusterError(
            f"--master-ip {world.master_addr} does not resolve on {world.host}; "
            "use a numeric address such as 10.10.1.1"
        ) from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise MusterError(
                f"{address} is in use on {world.host}; choose another --master-port, "
                "the same on every node"
            ) from None
        addresses = sorted(
            one.address
            for interface in psutil.net_if_addrs().values()
            for one in interface
            if one.family == socket.AF_INET
        )
        raise MusterError(
            f"rank 0 runs on {world.host}, which does not have --master-ip {world.master_addr} "
            f"({error.strerror}); it has {', '.join(addresses)}"
        ) from None


def _wait_for_address(world: World, timeout_s: float) -> None:
    started, last = time.monotonic(), "no answer"
    while True:
        try:
            with socket.create_connection((world.master_addr, world.master_port), timeout=5):
                return
        except socket.gaierror:
            raise MusterError(
                f"--master-ip {world.master_addr} does not resolve on {world.host}; "
                "use a numeric address such as 10.10.1.1"
            ) from None
        except OSError as error:
            last = error.strerror or str(error)
        if time.monotonic() - started > timeout_s:
            raise MusterError(
                f"rank {world.rank} on {world.host} could not reach rank 0 at "
                f"{world.master_addr}:{world.master_port} for {timeout_s:.0f} s ({last.lower()}); "
                "check that rank 0 is running, that address and port are the same on every "
                "node, and that no firewall is between them"
            )
        time.sleep(0.1)


def _call_the_roll(world: World, store: dist.Store, timeout_s: float) -> list[dict[str, object]]:
    """What each rank says of itself, in rank order, once all are there."""
    store.set(f"here/{world.rank}", json.dumps(_presence(world)))
    keys = [f"here/{rank}" for rank in range(world.world_size)]
    started, told = time.monotonic(), False
    while not store.check(keys):
        waited = time.monotonic() - started
        if store.check(["given_up"]):
            raise MusterError(store.get("given_up").decode())
        if waited > timeout_s:
            _give_up(
                store,
                f"after {timeout_s:.0f} s still missing: rank {_missing(store, keys)} of "
                f"{world.world_size}; check that it was started, with the same --world-size "
                f"and a --rank of its own",
            )
        if waited > 10 and world.is_main and not told:
            print(f"waiting for rank {_missing(store, keys)}", file=sys.stderr, flush=True)
            told = True
        time.sleep(0.02 if waited < 5 else 0.2)
    return [json.loads(store.get(key)) for key in keys]


def _give_up(store: dist.Store, message: str) -> NoReturn:
    """Say it to all who came, and stay until they have heard it: the store may be served here."""
    store.set("given_up", message)
    time.sleep(1.0)
    raise MusterError(message)


def _missing(store: dist.Store, keys: Sequence[str]) -> str:
    return ", ".join(key.rpartition("/")[2] for key in keys if not store.check([key]))


def _presence(world: World) -> dict[str, object]:
    boot = Path("/proc/sys/kernel/random/boot_id")  # one per kernel: containers share their cores
    machine = boot.read_text().strip() if boot.exists() else world.host
    can_ask = hasattr(os, "sched_getaffinity")
    cores = sorted(os.sched_getaffinity(0)) if can_ask else list(range(os.cpu_count() or 1))
    return {"host": world.host, "machine": machine, "cores": cores}


def fair_share(rank: int, roll: Sequence[dict[str, object]]) -> int:
    """How many threads `rank` should run: each core is shared by the workers that may use it."""
    own = roll[rank]
    neighbours = [one for one in roll if one["machine"] == own["machine"]]
    share = 0.0
    for core in own["cores"]:  # type: ignore[attr-defined]
        share += 1 / sum(core in one["cores"] for one in neighbours)  # type: ignore[operator]
    return max(1, int(share + 1e-9))


def _with_neighbours(world: World, hosts: Sequence[str]) -> World:
    """`world` with its local ranks, where workers of one host were started by hand."""
    mine = [rank for rank, host in enumerate(hosts) if host == world.host]
    order = list(dict.fromkeys(hosts))
    return replace(
        world,
        local_rank=mine.index(world.rank),
        local_world_size=len(mine),
        node_rank=order.index(world.host),
        num_nodes=len(order),
    )


def _choose_interface(world: World) -> None:
    """Let gloo and nccl use the interface that leads to rank 0, unless the user chose one.

    By itself gloo takes whatever the hostname resolves to, which may be 127.0.1.1 or a
    control network that must not carry gradients.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((world.master_addr, world.master_port))  # sends nothing
        except OSError:
            return
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == own for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def _part(world: World, store: dist.Store) -> None:
    """All leave together: none closes its connections while another still uses them.

    Rank 0 leaves last, since it may serve the store through which they say so.
    """
    patience = timedelta(seconds=60)
    for step in ("done", "left"):
        store.set(f"{step}/{world.rank}", "")
        if step == "done" or world.is_main:
            store.wait([f"{step}/{rank}" for rank in range(world.world_size)], patience)


def device_type(choice: str) -> str:
    """ "cuda" or "cpu".

    Raises:
        MusterError: a GPU was asked for and torch sees none.
    """
    if choice == "cuda" and not torch.cuda.is_available():
        raise MusterError(
            f"--device cuda, but torch sees no GPU on {socket.gethostname()}; use --device cpu"
        )
    return "cuda" if choice != "cpu" and torch.cuda.is_available() else "cpu"


def device_for(kind: str, world: World) -> torch.device:
    """The device of this worker: with GPUs, the one that has its local rank.

    Raises:
        MusterError: there are fewer GPUs than workers on this node.
    """
    if kind == "cpu":
        return torch.device("cpu")
    if world.local_rank >= torch.cuda.device_count():
        raise MusterError(
            f"{world.host} has {torch.cuda.device_count()} GPUs for {world.local_world_size} "
            f"workers; use --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def backend_for(choice: str, device_type: str) -> str:
    """nccl between GPUs, gloo between CPUs.

    Raises:
        MusterError: nccl was asked for without a GPU.
    """
    if choice == "nccl" and device_type != "cuda":
        raise MusterError("--backend nccl needs a GPU on every worker; use --backend gloo")
    if choice != "auto":
        return choice
    return "nccl" if device_type == "cuda" else "gloo"
