"""Workers meet, or each says in one line who or what is missing and what to check."""

import socket
import threading

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import MusterError, UsageError
from tests.train.workers import finish, free_port, start_by_hand
from train.device import backend_for, device_type
from train.exits import PeerFailed
from train.rendezvous import Peers, fair_share
from train.world import World

QUICK = ["--task", "synthetic", "--sync", "ddp", "--timeout-s", "3"]


def only_error(ended):
    code, _, err = ended
    assert code == 1 and err.startswith("error: ") and len(err.splitlines()) == 1, err
    return err


def test_rank_0_not_there_names_address_time_and_checks(tmp_path):
    port = free_port()
    (ended,) = finish([start_by_hand(1, 2, port, *QUICK, "--logs-dir", str(tmp_path))])
    said = only_error(ended)
    assert f"could not reach rank 0 at 127.0.0.1:{port} for 3 s (connection refused)" in said
    assert "check that rank 0 is running" in said


def test_a_world_that_never_fills_names_the_missing_ranks(tmp_path):
    port = free_port()
    more = [*QUICK, "--logs-dir", str(tmp_path)]
    ended = finish([start_by_hand(rank, 5, port, *more) for rank in (0, 2, 3)])
    assert "after 3 s still missing: rank 1, 4 of 5" in only_error(ended[0])
    for other in ended[1:]:
        assert other[0] == 1 and len(other[2].splitlines()) == 1, other


def test_a_port_in_use_is_named(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (ended,) = finish([start_by_hand(0, 2, port, *QUICK, "--logs-dir", str(tmp_path))])
    assert f"127.0.0.1:{port} is in use" in only_error(ended)


@pytest.mark.parametrize(
    ("address", "said"),
    [("192.0.2.1", "does not have --master-ip 192.0.2.1"), ("no.invalid", "does not resolve")],
)
def test_rank_0_must_own_its_address(tmp_path, address, said):
    more = [*QUICK, "--logs-dir", str(tmp_path), "--master-ip", address]
    (ended,) = finish([start_by_hand(0, 2, free_port(), *more)])
    assert said in only_error(ended)


def both(rank_0, rank_1):
    """Run one function as rank 0 and one as rank 1, over one store."""
    store, answers = dist.HashStore(), {}

    def run(rank, work):
        peers = Peers(World(rank=rank, world_size=2, host=f"h{rank}"), store, 1, rank)
        try:
            answers[rank] = work(peers)
        except MusterError as error:
            answers[rank] = error

    threads = [threading.Thread(target=run, args=one) for one in enumerate((rank_0, rank_1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    return answers[0], answers[1]


def test_rank_0_chooses_for_all():
    assert both(lambda p: p.agree("x", lambda: "zero"), lambda p: p.agree("x", lambda: "one")) == (
        "zero",
        "zero",
    )


def test_a_refusal_on_rank_0_reaches_the_others_as_its_words():
    def fails():
        raise UsageError("train.tsv:7: unknown label 'maybe'")

    zero, one = both(lambda p: p.agree("x", fails), lambda p: p.agree("x", fails))
    assert isinstance(zero, UsageError) and isinstance(one, PeerFailed)
    assert str(one) == "a worker on h0 could not go on: train.tsv:7: unknown label 'maybe'"


@pytest.mark.parametrize("shared", [True, False])
def test_data_is_made_once_or_once_per_host_that_does_not_see_it(shared):
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


cores = st.sets(st.integers(0, 7), min_size=1).map(sorted)


@given(st.lists(cores, min_size=1, max_size=8))
def test_threads_never_oversubscribe_by_more_than_the_one_each_needs(affinities):
    roll = [{"machine": "m", "cores": mine} for mine in affinities]
    shares = [fair_share(rank, roll) for rank in range(len(roll))]
    assert all(share >= 1 for share in shares)
    assert sum(share for share in shares if share > 1) <= 8


def test_pretend_nodes_share_cores_and_other_machines_do_not():
    here, there = {"machine": "a", "cores": [0, 1, 2, 3]}, {"machine": "b", "cores": [0, 1]}
    assert [fair_share(rank, [here, here, there]) for rank in range(3)] == [2, 2, 2]
    pinned = [{"machine": "a", "cores": [0, 1]}, {"machine": "a", "cores": [2, 3]}]
    assert [fair_share(rank, pinned) for rank in range(2)] == [2, 2]


def test_devices_and_backends_that_cannot_be_had():
    assert device_type("cpu") == "cpu" and backend_for("auto", "cpu") == "gloo"
    assert backend_for("auto", "cuda") == "nccl"
    with pytest.raises(MusterError, match="nccl needs a GPU on every worker; use --backend gloo"):
        backend_for("nccl", "cpu")
