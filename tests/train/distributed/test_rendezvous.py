"""Workers meet, or each reports in one line who or what is missing and what to check."""

import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from launch.agent.inspection import rank_view
from muster.errors import MusterError, UsageError
from tests.launch.submit import wait_until
from tests.train.workers import errors_of, finish, free_port, results_of, start_by_hand
from train.distributed import agreement, placement, rendezvous
from train.distributed.lost_peers import explained
from train.distributed.placement import WorkerInfo
from train.distributed.rendezvous import Meeting, Peers
from train.distributed.world import World

QUICK = ["--task", "synthetic", "--sync", "ddp", "--join-timeout-s", "3"]


def only_error(ended):
    code, _, err = ended
    errors = [line for line in errors_of(err) if not line.startswith("tip: ")]
    assert code == 1 and len(errors) == 1 and errors[0].startswith("error: "), err
    return errors[0].partition("; ")[0]  # a rank that hears of it has the remedy in the same line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rank", "flags", "message"),
    [
        (1, "--master-port {free}", "127.0.0.1:{free} for 3 s (connection refused)"),
        (0, "--master-port {taken}", "127.0.0.1:{taken} is in use"),
        (0, "--master-ip 192.0.2.1", " --master-ip 192.0.2.1"),
        (0, "--master-ip no.invalid", "no.invalid"),
    ],
)
def test_wrong_master_address_or_port_is_named(tmp_path, rank, flags, message):
    with socket.socket() as socket_in_use:
        socket_in_use.bind(("127.0.0.1", 0))
        socket_in_use.listen()
        ports = {"free": free_port(), "taken": socket_in_use.getsockname()[1]}
        more = ["--logs-dir", str(tmp_path), *flags.format(**ports).split()]
        (ended,) = finish([start_by_hand(rank, 2, free_port(), *QUICK, *more)])
    assert message.format(**ports) in only_error(ended)


@pytest.mark.slow
def test_missing_ranks_are_named_after_join_timeout(tmp_path):
    port = free_port()
    more = [*QUICK, "--join-timeout-s", "30", "--logs-dir", str(tmp_path)]
    ended = finish([start_by_hand(rank, 5, port, *more) for rank in (0, 2, 3)])
    # rank 0 prints this after 10 s, when a busy machine may not have started the others yet
    assert re.search(r"^waiting for rank 1, (2, )?(3, )?4$", ended[0][2], re.M), ended[0][2]
    assert "still missing: rank 1, 4 (of 5)" in only_error(ended[0])
    for other in ended[1:]:
        only_error(other)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ([(0, 3), (1, 3), (1, 3)], "rank 1 was started twice: pid 1 on h, and pid 1 on h"),
        ([(0, 3), (1, 4)], "has world size"),
    ],
    ids=["same rank", "other world size"],
)
def test_duplicate_rank_or_other_world_size_is_named_on_all_ranks(workers, message, tmp_path):
    port = free_port()
    flags = [*QUICK, "--join-timeout-s", "300", "--logs-dir", str(tmp_path)]
    ended = finish([start_by_hand(rank, size, port, *flags) for rank, size in workers])
    assert len({only_error(one) for one in ended}) == 1
    assert message in re.sub(r"pid \d+ on [^,;]+", "pid 1 on h", only_error(ended[0]))


@pytest.fixture
def process(monkeypatch):
    """Return a function that gives this process another id and host, and returns its world."""

    def process(pid, rank, world_size):
        monkeypatch.setattr("os.getpid", lambda: pid)
        return World(rank=rank, world_size=world_size, host=f"node{pid}")

    return process


def test_duplicate_rank_and_other_world_size_name_both_processes(process):
    store = dist.HashStore()
    rendezvous._register(process(1, 2, 3), store)
    with pytest.raises(MusterError) as refusal:
        rendezvous._register(process(5, 2, 3), store)
    assert str(refusal.value) == (
        "rank 2 was started twice: pid 1 on node1, and pid 5 on node5; "
        "give each worker its own --rank or RANK, from 0 to 2"
    )
    with pytest.raises(MusterError) as refusal:
        rendezvous._register(process(6, 0, 4), store)
    assert str(refusal.value) == (
        "rank 0 on node6 (pid 6) has world size 4, but rank 2 on node1 (pid 1) has 3; "
        "set the same --world-size or WORLD_SIZE on every node"
    )


def test_second_rank_0_names_the_process_that_listens(open_store, monkeypatch):
    _, port = open_store("127.0.0.1")
    monkeypatch.setattr(rendezvous, "_STORES", {})  # as in another process
    second = World(rank=0, world_size=2, master_addr="127.0.0.1", master_port=port, host="node0")
    own = os.getpid()
    words = rf"{port} is in use on node0 by pid {own} \(.+\), .*rank 0 \(pid {own}\).*--master-port"
    with pytest.raises(MusterError, match=words):
        rendezvous._open_store(second, 60.0)


def outcome(act):
    try:
        return act()
    except MusterError as error:
        return f"{type(error).__name__}: {error}"


def test_missing_ranks_are_named_and_all_give_up_in_the_same_words(monkeypatch, capsys):
    monkeypatch.setattr(rendezvous, "ANNOUNCE_S", 0.0)
    store = dist.HashStore()
    store.set("here/3", "{}")
    own_info = WorkerInfo("h", "machine", (0,), ())
    missing = r"still missing: rank 1, 2, 4 \(of 5\); "
    with pytest.raises(MusterError, match=missing) as given_up:
        rendezvous._gather_workers(World(rank=0, world_size=5), own_info, store, 1.0)
    assert capsys.readouterr().err == "waiting for rank 1, 2, 4\n"
    store.set("given_up", str(given_up.value))
    with pytest.raises(MusterError, match=missing):
        rendezvous._gather_workers(World(rank=2, world_size=5), own_info, store, 300.0)
    assert capsys.readouterr().err == ""


def agree(ranks, folder):
    """Return what a rank gets: rank 0's choice, each rank's refusal, and prepared data."""
    rank, size = ranks.rank, ranks.world_size
    found = {"chosen": agreement.broadcast_result(rank, size, lambda: f"by rank {rank}")}
    for failing in range(size):

        def read(failing=failing):
            if rank == failing:
                raise UsageError("train.tsv:7: unknown label 'maybe'")

        found[f"refused by {failing}"] = outcome(lambda: agreement.gather_results(size, read))
    workers = [WorkerInfo(f"h{host}", "machine", (0,), ()) for host in range(size)]
    world = World(rank=rank, world_size=size, host=f"h{rank}")
    peers = Peers(world, dist.HashStore(), workers, torch.device("cpu"))
    for disk in ("shared", f"own{rank}"):
        data, made = Path(folder, disk), []

        def make(data=data, made=made):
            made.append(True)
            data.mkdir()

        peers.prepare(make, data.exists)
        found[disk[:3]] = len(made), data.exists()
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(agreement, "PATIENCE_S", 0.5)
        found["slow"] = outcome(lambda: peers.prepare(lambda: time.sleep(2), lambda: True))
    return found


def test_ranks_agree_on_choices_refusals_and_who_prepares_data(tmp_path):
    every = results_of(agree, 2, tmp_path, str(tmp_path))
    refusal = "train.tsv:7: unknown label 'maybe'"
    refused = f"PeerFailed: a worker on {socket.gethostname()} failed: {refusal}"
    for rank, found in enumerate(every):
        assert found["chosen"] == "by rank 0"
        assert found[f"refused by {rank}"] == f"UsageError: {refusal}"
        assert found[f"refused by {1 - rank}"] == refused
        assert found["own"] == (1, True)  # once per host that does not see what rank 0 made
        assert found["sha"] == (int(rank == 0), True)
        assert found["slow"] is None  # despite the limit of other waits


def test_long_preparation_of_data_is_announced_by_rank_0(monkeypatch, capsys):
    printed = []

    def is_printed():
        printed.append(capsys.readouterr().err)
        return printed[-1].endswith("\n")

    def make():
        wait_until(is_printed)

    def prepare(rank, size, make):
        world = World(rank=rank, world_size=size)
        Peers(world, Mock(), [Mock(), Mock()], torch.device("cpu")).prepare(make, lambda: True)

    monkeypatch.setattr(rendezvous, "ANNOUNCE_S", 0.0)
    monkeypatch.setattr(rendezvous, "broadcast_result", lambda rank, size, act, patience_s: act())
    monkeypatch.setattr(rendezvous, "gather_results", lambda size, act, patience_s: act())
    for rank, size in ((1, 2), (0, 1)):  # without output, and without waiting ranks
        prepare(rank, size, lambda: None)
    assert capsys.readouterr().err == ""
    prepare(0, 2, make)
    assert "".join(printed).startswith("waiting for rank 0, ")


@pytest.mark.parametrize(("device", "backend"), [("cpu", "gloo"), ("cuda:1", "nccl")])
def test_nccl_group_connects_at_its_creation(device, backend, monkeypatch):
    init = Mock(side_effect=ZeroDivisionError)
    monkeypatch.setattr(rendezvous, "_open_store", lambda *words: dist.HashStore())
    monkeypatch.setattr(rendezvous, "_gather_workers", lambda *words: [])
    monkeypatch.setattr(rendezvous, "choose_interface", lambda world: None)
    monkeypatch.setattr(placement, "choose_device", lambda *words: torch.device(device))
    monkeypatch.setattr(dist, "init_process_group", init)
    with pytest.raises(ZeroDivisionError), rendezvous.meet(World(world_size=2), Meeting()):
        pass
    assert init.call_args.args == (backend,)
    assert init.call_args.kwargs["device_id"] == (None if device == "cpu" else torch.device(device))


@pytest.fixture
def leave(monkeypatch):
    """Make one of two ranks leave and find the other one late; `closes` is called then."""
    closes = Mock()
    monkeypatch.setattr(rendezvous, "LEFT_ALONE_S", 0.0)
    monkeypatch.setattr(rendezvous, "DISK_PATIENCE_S", 60.0)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "gloo")
    monkeypatch.setattr(rendezvous, "_shut_down", closes)
    store = dist.HashStore()

    def leave(rank):
        world = World(rank=rank, world_size=2, agent_store=True)
        return threads.submit(rendezvous._leave_together, world, store, {1})

    with ThreadPoolExecutor() as threads:
        yield leave, closes, store


def test_rank_that_leaves_alone_closes_and_waits(leave):
    """The others may be saving, which needs no connection."""
    leave, closes, store = leave
    first = leave(0)
    wait_until(lambda: closes.called)
    assert not first.done() and store.get("ends")
    for left in (first, leave(1)):
        assert left.result(timeout=300) is None


def test_rank_that_leaves_hears_of_one_that_fails(leave):
    leave, closes, store = leave
    first = leave(0)
    wait_until(lambda: closes.called)
    explained(KeyError("x"), World(rank=1, world_size=2), ["a", "b"], store, 3.0)
    with pytest.raises(RuntimeError, match="connection closed"):
        first.result(timeout=300)
    assert rendezvous._leave_together.__name__ == rank_view.LEAVES  # agents look for this name


def test_only_connections_of_the_group_are_shut_down():
    with socket.create_server(("127.0.0.1", 0)) as server:
        pairs = []
        for _ in range(2):
            before = rendezvous._connections()
            client = socket.create_connection(server.getsockname(), timeout=60)
            made = rendezvous._connections().keys() - before.keys()
            pairs.append((client, server.accept()[0], made))
    (mine, peer, made), (other, its_peer, _) = pairs
    rendezvous._shut_down(made)
    assert peer.recv(1) == b""
    other.sendall(b"x")
    assert its_peer.recv(1) == b"x"
    for end in (mine, peer, other, its_peer):
        end.close()


@pytest.fixture
def open_store(monkeypatch):
    """Return a function that opens rank 0's store, which exists until the test ends."""
    monkeypatch.setattr(rendezvous, "_STORES", {})

    def opened(address, **more):
        world = World(world_size=2, master_addr=address, master_port=free_port(), **more)
        return rendezvous._open_store(world, 60.0), world.master_port

    return opened


@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "127.0.0.2"), ("::1", "127.0.0.1")])
def test_store_listens_at_the_given_address_alone(open_store, address, other):
    if not socket.has_ipv6 and address == "::1":
        pytest.skip("no IPv6 here")
    store, port = open_store(address)
    store.set("key", "value")
    assert store.get("key") == b"value"
    socket.create_connection((address, port), 60).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((other, port), 60)


def test_store_of_a_host_name_listens_at_all_addresses(open_store):
    _, port = open_store(socket.gethostname())
    socket.create_connection(("127.0.0.1", port), 60).close()


def test_store_keys_are_hidden_without_the_attempts_secret(open_store):
    store, port = open_store("127.0.0.1", store_secret="s3cret")
    store.set("here/0", "{}")
    strangers = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    for prefix in ("muster/attempt_0/meeting_0", "muster//attempt_0/meeting_0"):
        assert not dist.PrefixStore(prefix, strangers).check(["here/0"])
    assert dist.PrefixStore("muster/s3cret/attempt_0/meeting_0", strangers).check(["here/0"])
    assert "s3cret" not in repr(World(store_secret="s3cret"))


def test_failed_rank_aborts_nccl_kernels_without_waiting(monkeypatch):
    """The kernels wait for the other ranks, so their end, and even an abort, may take forever."""
    begins = Event()
    is_over = Event()
    destroy = Mock()

    def abort():
        begins.set()
        is_over.wait()

    monkeypatch.setattr(rendezvous, "ABORT_S", 0.05)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_backend", lambda: "nccl")
    monkeypatch.setattr(dist, "destroy_process_group", destroy)
    monkeypatch.setattr(dist.distributed_c10d, "_abort_process_group", abort)
    try:
        rendezvous._close_at_once(())
        assert begins.wait(timeout=300) and not destroy.called
    finally:
        is_over.set()
