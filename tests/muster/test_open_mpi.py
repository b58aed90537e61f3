"""Where rank 0 of an mpirun is, from what Open MPI 4.1 sets: each case as it was on four nodes."""

import socket

import pytest

from muster.rank_variables import host_of_rank_0, names_of

ADDRESSES = {"node0": "10.10.1.1", "node1": "10.10.1.2", "node2": "10.10.1.3", "box": "10.10.1.254"}


@pytest.fixture(autouse=True)
def _names(monkeypatch):
    def look_up(name, port):
        if name not in ADDRESSES:
            raise socket.gaierror(name)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def env(*, rank, size, local="0/1", own, first, machines, count):
    local_rank, _, local_size = local.partition("/")
    number, _, address = own.partition(" ")
    named = {} if number == "0" else {"OMPI_MCA_orte_node_regex": machines}
    return named | {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "OMPI_COMM_WORLD_LOCAL_RANK": local_rank,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size,
        "OMPI_MCA_orte_num_nodes": str(count),
        "OMPI_MCA_orte_hnp_uri": f"3636592640.0;tcp://{first}:56821",
        "OMPI_MCA_orte_local_daemon_uri": f"3636592640.{number};tcp://{address}:41009",
    }


HERE, BOX = ADDRESSES["node0"], ADDRESSES["box"]
FROM_NODE0 = {"size": 4, "first": HERE, "machines": "node[1:0-3]@0(4)", "count": 4}
FROM_BOX = {"size": 4, "first": BOX, "machines": "box,node[1:0-3]@0(5)", "count": 4}
NOT_ALL = {"size": 2, "first": HERE, "machines": "node[1:0-3]@0(4)", "count": 2}
NOT_HERE = {"size": 2, "first": HERE, "machines": "node[1:0-2]@0(3)", "count": 2}
TWO_CARDS = {**FROM_NODE0, "first": "172.17.0.1,10.10.1.1"}
TWO_EACH = {"size": 4, "first": BOX, "machines": "box,node[1:0-1]@0(3)", "count": 2}
UNEVEN = {"size": 3, "first": BOX, "machines": "box,node[1:0-1]@0(3)", "count": 2}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (env(rank=0, own=f"0 {HERE}", **FROM_NODE0), HERE),
        (env(rank=1, own="1 10.10.1.2", **FROM_NODE0), HERE),
        (env(rank=3, own="3 10.10.1.4", **FROM_NODE0), HERE),
        (env(rank=1, own="1 10.10.1.2", **TWO_CARDS), "node0"),  # one may be of another network
        (env(rank=0, own=f"1 {HERE}", **FROM_BOX), HERE),
        (env(rank=1, own="2 10.10.1.2", **FROM_BOX), "node0"),
        (env(rank=1, own="1 10.10.1.2", **NOT_ALL), HERE),
        (env(rank=0, own="1 10.10.1.2", **NOT_HERE), "10.10.1.2"),
        (env(rank=1, own="2 10.10.1.3", **NOT_HERE), "node1"),
        (env(rank=2, own="2 10.10.1.2", local="0/2", **TWO_EACH), "node0"),  # machine by machine
        (env(rank=3, own="2 10.10.1.2", local="1/2", **TWO_EACH), "node0"),  # or in turn
        (env(rank=1, own="2 10.10.1.2", local="0/2", **TWO_EACH), "node0"),
    ],
)
def test_where_rank_0_is(found, expected):
    assert host_of_rank_0(found) == expected


@pytest.mark.parametrize(
    "found",
    [
        # A file of ranks: rank 0 is on the third machine, and knows it.
        env(rank=0, own="2 10.10.1.3", **FROM_NODE0),
        env(rank=2, own="1 10.10.1.2", size=3, first=HERE, machines="node[1:0,2,1]@0,2,1", count=6),
        env(rank=2, own="2 10.10.1.2", **UNEVEN),  # as well could mpirun's own machine have one
        {"OMPI_COMM_WORLD_RANK": "0"},  # another version, with other variables
        env(rank=1, own="2 10.10.1.2", **{**FROM_BOX, "machines": "box,unknown[1:0-3]@0(5)"}),
    ],
)
def test_uncertain_place_of_rank_0_is_not_named(found):
    assert host_of_rank_0(found) is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("box,node[1:0-3]@0(5)", "box node0 node1 node2 node3"),
        ("node[1:1,0,2-3]@0(4)", "node1 node0 node2 node3"),
        ("c[2:8-10].lab,login@0(4)", "c08.lab c09.lab c10.lab login"),
        ("box,[2:10].10.1.2,[2:10].10.1.1@0(3)", "box 10.10.1.2 10.10.1.1"),
        ("alone@0(1)", "alone"),
        ("", ""),
    ],
)
def test_names_as_open_mpi_writes_them(text, names):
    assert names_of(text) == names.split()
