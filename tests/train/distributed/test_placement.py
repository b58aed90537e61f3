"""From the same list of workers, every rank derives the same neighbours, cores and GPUs."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import MusterError
from train.distributed import placement
from train.distributed.rendezvous import Peers
from train.distributed.world import World


def worker(host="h", machine="m", cores=(0, 1), gpus=()):
    return placement.WorkerInfo(host, machine, tuple(cores), tuple(gpus))


cores = st.sets(st.integers(0, 7), min_size=1).map(sorted)


@given(st.lists(cores, min_size=1, max_size=8))
def test_threads_of_all_workers_fit_the_cores(affinities):
    workers = [worker(cores=mine) for mine in affinities]
    shares = [placement.fair_share(rank, workers) for rank in range(len(workers))]
    assert all(share >= 1 for share in shares)
    assert sum(share for share in shares if share > 1) <= 8


def test_cores_are_shared_by_simulated_nodes_alone():
    here, there = worker(machine="a", cores=range(4)), worker(machine="b", cores=range(2))
    assert [placement.fair_share(rank, [here, here, there]) for rank in range(3)] == [2, 2, 2]
    pinned = [worker("n0", cores=(0, 1)), worker("n1", cores=(2, 3))]
    assert [placement.fair_share(rank, pinned) for rank in range(2)] == [2, 2]
    thirds = [worker(cores=range(3))] * 3
    assert [placement.fair_share(rank, thirds) for rank in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        ([worker(gpus="ab"), worker(gpus="ab")], [0, 1]),  # torchrun: all see all
        ([worker(gpus="a"), worker(gpus="b")], [0, 0]),  # each sees its own, as srun can bind
        ([worker("x", gpus="abc"), worker("y", gpus="abc")], [0, 1]),  # simulated nodes
        ([worker(machine="p", gpus="a"), worker(machine="q", gpus="a")], [0, 0]),
        ([worker(gpus="a"), worker(gpus="a")], None),
        ([worker(gpus="ab"), worker(machine="q")], None),
        ([worker()], None),
    ],
)
def test_each_worker_gets_its_own_gpu_or_none_does(workers, chosen):
    assert placement.assign_gpus(workers) == chosen


seen = st.lists(st.sampled_from("abcd"), unique=True, max_size=4)


@given(st.lists(st.tuples(st.sampled_from("pq"), seen), min_size=1, max_size=6))
def test_gpu_is_never_given_twice(workers):
    workers = [worker(machine=machine, gpus=gpus) for machine, gpus in workers]
    chosen = placement.assign_gpus(workers)
    if chosen is not None:
        given_away = [
            (worker.machine, worker.gpus[index])
            for worker, index in zip(workers, chosen, strict=True)
        ]
        assert len(set(given_away)) == len(workers)


def test_too_few_gpus_are_named_and_the_cpu_is_used(capsys):
    workers = [worker(gpus="a")] * 4
    world = World(rank=0, world_size=4, host="h")
    assert placement.choose_device("auto", world, workers).type == "cpu"
    assert "4 workers on h have 1 GPUs" in capsys.readouterr().err
    with pytest.raises(MusterError, match="--device cuda, but 4 workers on h have 1 GPUs"):
        placement.choose_device("cuda", world, workers)
    assert placement.choose_device("cpu", world, workers).type == "cpu"


@pytest.mark.parametrize("job", [None, "SLURM_JOB_ID", "PBS_JOBID"])
def test_gpu_too_few_is_an_error_on_a_cluster(monkeypatch, job):
    """The cluster is two nodes, or one node from a scheduler; --device cpu is always accepted."""
    workers = [worker(gpus="ab")] * 2 + [worker("h2", machine="other", gpus="a")] * 2
    if job is not None:
        monkeypatch.setenv(job, "7")
        workers = workers[2:]
    for rank in range(len(workers)):
        world = World(rank=rank, world_size=len(workers), host="h")
        with pytest.raises(MusterError, match="2 workers on h2 have 1 GPUs"):
            placement.choose_device("auto", world, workers)
        assert placement.choose_device("cpu", world, workers).type == "cpu"
    without = [replace(one, gpus=()) for one in workers]
    assert placement.choose_device("auto", world, without).type == "cpu"


def test_slices_of_one_gpu_are_several(monkeypatch):
    """torch reports the id of the whole GPU for each slice."""
    whole = Mock(uuid="a-b-c")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: whole)
    seen = []
    for visible in ("MIG-x", "MIG-y", "0"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        seen.append(placement.visible_gpus("auto"))
    assert seen == [["MIG-x"], ["MIG-y"], ["a-b-c"]]
    assert placement.visible_gpus("cpu") == []


@pytest.mark.parametrize(
    ("workers", "chosen"),
    [
        ([worker(gpus="a")] * 3, [0, 0, 0]),
        ([worker(gpus="ab")] * 3, [0, 1, 0]),
        ([worker(machine="p", gpus="ab"), worker(machine="q", gpus="ab")], [0, 0]),
        ([worker(gpus="a"), worker(machine="q")], None),
    ],
)
def test_workers_share_gpus_in_turn(workers, chosen):
    assert placement.share_gpus(workers) == chosen


def test_gpu_is_shared_only_with_device_cuda_and_backend_gloo(monkeypatch):
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    workers = [worker(gpus="a")] * 2
    world = World(rank=1, world_size=2, host="h")
    choose = placement.choose_device
    assert choose("cuda", world, workers, "gloo") == torch.device("cuda", 0)
    assert choose("auto", world, workers, "gloo").type == "cpu"
    with pytest.raises(MusterError, match="--backend gloo"):
        choose("cuda", world, workers, "nccl")


def test_backend_follows_the_device():
    assert placement.choose_backend("auto", torch.device("cpu")) == "gloo"
    assert placement.choose_backend("auto", torch.device("cuda", 0)) == "nccl"
    with pytest.raises(MusterError, match="--backend nccl needs a GPU"):
        placement.choose_backend("nccl", torch.device("cpu"))


def test_workers_started_by_hand_have_their_hosts_as_nodes():
    workers = [worker("b"), worker("a"), worker("b"), worker("a", machine="other")]
    own = [World(rank=rank, world_size=4) for rank in range(4)]
    worlds = [placement.with_local_ranks(world, workers) for world in own]
    assert [(w.node_rank, w.local_rank) for w in worlds] == [(0, 0), (1, 0), (0, 1), (2, 0)]
    assert {w.num_nodes for w in worlds} == {3}
    assert [w.local_world_size for w in worlds] == [2, 1, 2, 1]
    leads = [
        Peers(world, dist.HashStore(), workers, torch.device("cpu")).leads_host for world in worlds
    ]
    assert leads == [True, True, False, True]
