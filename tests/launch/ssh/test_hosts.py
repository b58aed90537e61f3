"""What hosts files and --hosts are read as."""

import re
import string

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from launch.spec import NodeSpec
from launch.ssh.hosts import parse_hosts, read_hosts
from muster.errors import UsageError
from tests.launch.ssh.host_texts import names


def test_a_line_says_how_to_log_in_and_how_many_workers_start(read):
    text = """\
# the cluster
alice@node0:2222 slots=4 address=10.10.1.1  # rank 0

\tnode1\tslots=gpu
10.0.0.7
"""
    assert read(text) == (
        NodeSpec("node0", 4, "alice", 2222, "10.10.1.1"),
        NodeSpec("node1", "gpu"),
        NodeSpec("10.0.0.7", 1),
    )


def test_editors_of_other_systems(read):
    assert read(b"\xef\xbb\xbfb\r\na\r\n") == (NodeSpec("b", 1), NodeSpec("a", 1))


def test_slots_hold_for_each_host_of_a_line(read):
    assert [node.nproc for node in read("a,n[1-2] slots=3")] == [3, 3, 3]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("b,a", "b a"),
        ("node[0-3]", "node0 node1 node2 node3"),
        ("n[08-10]", "n08 n09 n10"),
        ("n[3,1-2]", "n3 n1 n2"),
        ("n[0-6/3]x", "n0x n3x n6x"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("n[2,1],a,u.v+w@b-c.d_e:2222", "n2 n1 a u.v+w@b-c.d_e:2222"),
        ("cs744@h:[60000-60001]", "cs744@h:60000 cs744@h:60001"),
        ("h[1-2]:[8-9]", "h1:8 h1:9 h2:8 h2:9"),
        ("10.0.0.[9-10]", "10.0.0.9 10.0.0.10"),
        ("u@h,h,h:22,v@h", "u@h h h:22 v@h"),
        ("fd00::1,u@[fd00::2],[fd00::3]:22", "fd00::1 u@fd00::2 [fd00::3]:22"),
        ("fd00::[1-2]", "fd00::1 fd00::2"),
    ],
)
def test_hosts_come_in_the_order_of_writing(text, expected):
    assert names(text) == expected.split()
    assert names(*re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)) == expected.split()


def test_a_user_given_beside_the_hosts_logs_in_where_none_is_named(read):
    assert [node.name for node in read("a\nb@c", user="me")] == ["me@a", "b@c"]
    assert parse_hosts(["a"], 1, "", user="me") == (NodeSpec("a", 1, "me"),)


def test_one_flag_takes_a_manifest_too(read):
    with pytest.raises(UsageError, match="hosts: begins with 'html'"):
        read("\n <html/>")


INDEX = st.integers(0, 99)
RANGES = st.lists(
    st.builds("{0[0]}-{0[1]}".format, st.tuples(INDEX, INDEX).map(sorted)) | INDEX.map(str),
    min_size=1,
    max_size=3,
)


@given(st.lists(st.tuples(st.sampled_from("abc"), RANGES), min_size=1, max_size=2))
def test_ranges_mean_what_clustershell_makes_of_them(parts):
    text = "-".join(f"{letter}[{','.join(ranges)}]" for letter, ranges in parts)
    expected = set(NodeSet(text))
    try:
        nodes = names(text)
    except UsageError as error:
        assert re.search("was given before|more than 4096", str(error))
    else:
        assert set(nodes) == expected
        assert len(nodes) == len(expected)


WORD = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=8)
HOST = st.builds("{}{}".format, st.sampled_from(string.ascii_letters), WORD)
HOST = HOST | st.ip_addresses(v=4).map(str) | st.builds("{}.{}-x".format, HOST, WORD)
NODE = st.builds(
    NodeSpec,
    host=HOST,
    nproc=st.integers(1, 9999) | st.just("gpu"),
    user=st.none() | WORD,
    port=st.none() | st.integers(1, 65535),
    address=st.none() | st.ip_addresses(v=4, network="10.0.0.0/8").map(str),
)


def line(node: NodeSpec) -> str:
    address = f" address={node.address}" if node.address else ""
    return f"{node.name} slots={node.nproc}{address}"


@given(
    st.lists(NODE, min_size=1, max_size=8, unique_by=lambda node: node.name.lower()),
    st.sampled_from(["\n", "\r\n", "\n\n", " # comment\n", "\n#x\n\t\n"]),
)
def test_what_is_written_of_nodes_reads_as_the_same_nodes(tmp_path_factory, nodes, end):
    addresses = [node.address for node in nodes if node.address]
    path = tmp_path_factory.getbasetemp() / "written"
    path.write_bytes("".join(line(node) + end for node in nodes).encode())
    if len(set(addresses)) == len(addresses):
        assert read_hosts(path, 7) == tuple(nodes)
