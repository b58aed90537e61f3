"""Workers meet, or each says in one line who or what is missing and what to check."""

import re
import socket
import threading

import pytest
import torch
import torch.distributed as dist

from muster.errors import MusterError, UsageError
from tests.train.workers import errors_of, finish, free_port, start_by_hand
from train.distributed import agreement
from train.distributed.exit_guard import PeerFailed
from train.distributed.placement import WorkerInfo
from train.distributed.rendezvous import Peers, _give_up, _part
from train.distributed.world import World

QUICK = ["--task", "synthetic", "--sync", "ddp", "--join-timeout-s", "3"]


def only_error(ended):
    code, _, err = ended
    errors = errors_of(err)
    assert code == 1 and len(errors) == 1 and errors[0].startswith("error: "), err
    return errors[0]


def test_rank_0_not_there_names_address_time_and_checks(tmp_path):
    port = free_port()
    (ended,) = finish([start_by_hand(1, 2, port, *QUICK, "--logs-dir", str(tmp_path))])
    message = only_error(ended)
    assert f"could not reach rank 0 at 127.0.0.1:{port} for 3 s (connection refused)" in message
    assert "check that rank 0 is running" in message


def test_a_world_that_never_fills_names_the_missing_ranks(tmp_path):
    port = free_port()
    more = [*QUICK, "--join-timeout-s", "30", "--logs-dir", str(tmp_path)]
    ended = finish([start_by_hand(rank, 5, port, *more) for rank in (0, 2, 3)])
    # rank 0 says so after 10 s, by when a busy machine may not have started the others
    assert re.search(r"^waiting for rank 1, (2, )?(3, )?4$", ended[0][2], re.M), ended[0][2]
    assert "after 30 s still missing: rank 1, 4 of 5" in only_error(ended[0])
    for other in ended[1:]:
        only_error(other)


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ([(0, 3), (1, 3), (1, 3)], "rank 1 was started twice"),
        ([(0, 3), (1, 4)], "; give the same on every node"),
    ],
    ids=["same rank", "other world size"],
)
def test_what_nodes_say_differently_is_named_on_all(workers, message, tmp_path):
    port = free_port()
    flags = [*QUICK, "--join-timeout-s", "300", "--logs-dir", str(tmp_path)]
    ended = finish([start_by_hand(rank, size, port, *flags) for rank, size in workers])
    assert all(message in only_error(one) for one in ended)


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (ended,) = finish([start_by_hand(0, 2, port, *QUICK, "--logs-dir", str(tmp_path))])
    assert f"127.0.0.1:{port} is in use" in only_error(ended)


@pytest.mark.parametrize(
    ("address", "message"),
    [("192.0.2.1", "does not have --master-ip 192.0.2.1"), ("no.invalid", "does not resolve")],
)
def test_rank_0_must_own_its_address(tmp_path, address, message):
    more = [*QUICK, "--logs-dir", str(tmp_path), "--master-ip", address]
    (ended,) = finish([start_by_hand(0, 2, free_port(), *more)])
    assert message in only_error(ended)


@pytest.fixture
def both(monkeypatch):
    """Run one function as rank 0 and one as rank 1, which tell each other what they make."""
    values, together = {}, threading.Barrier(2, timeout=300)

    def gather(world_size, value):
        values[int(threading.current_thread().name)] = value
        together.wait()
        found = [values[0], values[1]]
        together.wait()
        return found

    monkeypatch.setattr(agreement, "wait_for_all", lambda world_size: None)
    monkeypatch.setattr(agreement, "gather", gather)

    def run(rank_0, rank_1):
        answers = {}

        def work(rank, act):
            workers = [WorkerInfo(f"h{host}", "machine", (0,), ()) for host in range(2)]
            world = World(rank=rank, world_size=2, host=f"h{rank}")
            try:
                answers[rank] = act(Peers(world, dist.HashStore(), workers, torch.device("cpu")))
            except MusterError as error:
                answers[rank] = error

        every = [
            threading.Thread(target=work, args=one, name=str(one[0]))
            for one in enumerate((rank_0, rank_1))
        ]
        for thread in every:
            thread.start()
        for thread in every:
            thread.join(timeout=300)
        return answers[0], answers[1]

    return run


class Patient:
    """A store that notes how long it is told to wait."""

    def __init__(self):
        self.seconds = {}

    def set(self, key, value):
        pass

    def wait(self, keys, patience):
        self.seconds[keys[0]] = patience.total_seconds()


def test_who_serves_the_store_stays_until_all_have_heard_why(monkeypatch):
    monkeypatch.setattr("train.distributed.rendezvous.HEARD_S", 300.0, raising=False)
    store, ended = dist.HashStore(), []
    store.add("came", 2)

    def give_up():
        _give_up(World(rank=0, world_size=3), store, "rank 2 is missing")
        ended.append(True)

    thread = threading.Thread(target=give_up)
    thread.start()
    thread.join(2)
    assert thread.is_alive() and store.get("given_up") == b"rank 2 is missing"
    store.add("heard", 1)
    thread.join(300)
    assert ended == [True]


@pytest.mark.parametrize("rank", [0, 1])
def test_saving_the_model_may_take_an_hour(rank, monkeypatch):
    monkeypatch.setattr(
        "train.distributed.rendezvous.wait_for_all", lambda world_size: None, raising=False
    )
    store = Patient()
    _part(World(rank=rank, world_size=2), store)
    assert store.seconds["done/0"] >= 3600


def test_rank_0_chooses_for_all(both):
    def choose(peers):
        return agreement.of_first(peers.world.rank, 2, lambda: f"by {peers.world.host}")

    assert both(choose, choose) == ("by h0", "by h0")


@pytest.mark.parametrize("failing", [0, 1])
def test_a_refusal_on_one_rank_reaches_the_other_as_its_words(both, failing):
    def choose(peers):
        if peers.world.rank == failing:
            raise UsageError("train.tsv:7: unknown label 'maybe'")

    def work(peers):
        return agreement.of_each(2, lambda: choose(peers))

    answers = both(work, work)
    own, other = answers[failing], answers[1 - failing]
    assert isinstance(own, UsageError) and isinstance(other, PeerFailed)
    host = socket.gethostname()
    assert str(other) == f"a worker on {host} could not go on: train.tsv:7: unknown label 'maybe'"


@pytest.mark.parametrize("shared", [True, False])
def test_data_is_made_once_or_once_per_host_that_does_not_see_it(both, shared):
    made = []
    seen = {0: set(), 1: set()}

    def work(peers):
        own = seen[0 if shared else peers.world.rank]

        def make():
            made.append(peers.world.host)
            own.add("data")

        peers.prepare(make, lambda: "data" in own)
        return "data" in own

    assert both(work, work) == (True, True)
    assert made == (["h0"] if shared else ["h0", "h1"])
