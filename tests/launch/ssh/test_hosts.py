"""How hosts files and --hosts are read, and how wrong ones are refused."""

import ipaddress
import re
import string
from contextlib import chdir
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.launch import ONE_PER_GPU, ONE_WORKER, WorkersPerNode
from launch.spec import NodeSpec
from launch.ssh.hosts import MOST_SLOTS, parse_hosts, read_hosts
from muster.errors import UsageError
from tests.commands import refusal
from tests.fuzzing import fuzzed
from tests.written import write


def names(*words: str) -> list[str]:
    return [node.name for node in parse_hosts(words, ONE_WORKER, "--hosts")]


@pytest.fixture
def read(tmp_path, monkeypatch):
    """A function that returns the nodes of a hosts file with this text."""
    monkeypatch.chdir(tmp_path)
    return lambda text, **more: read_hosts(
        write(Path(), {"hosts": text}) / "hosts", ONE_WORKER, **more
    )


def nodes_from_text(text: str) -> tuple[NodeSpec, ...]:
    """Return the nodes of a file `hosts` with this text."""
    with TemporaryDirectory() as folder, chdir(folder):
        Path("hosts").write_text(text)
        return read_hosts(Path("hosts"), ONE_WORKER)


def problems(*words: str | bytes, read=names) -> list[str]:
    return refusal(read, *words).split("\n")


TEXT = """\
# the cluster
alice@node0:2222 slots=4 address=10.10.1.1  # rank 0

\tnode1\tslots=gpu
10.0.0.7
"""
NODES = [
    NodeSpec("node0", WorkersPerNode(4), "alice", 2222, "10.10.1.1"),
    NodeSpec("node1", ONE_PER_GPU),
]


FILES = [
    (TEXT, [*NODES, NodeSpec("10.0.0.7", ONE_WORKER)]),
    (
        b"\xef\xbb\xbfb\r\na\r\n",
        [NodeSpec("b", ONE_WORKER), NodeSpec("a", ONE_WORKER)],
    ),  # of editors that write a BOM and CRLF
    (
        "a slots=2 max_slots=4\nb max-slots=8 slots=gpu",
        [NodeSpec("a", WorkersPerNode(2)), NodeSpec("b", ONE_PER_GPU)],
    ),
    ("a,n[1-2] slots=3", [NodeSpec(name, WorkersPerNode(3)) for name in ("a", "n1", "n2")]),
]


@pytest.mark.parametrize(("text", "nodes"), FILES)
def test_hosts_line_gives_login_and_number_of_workers(read, text, nodes):
    assert read(text) == tuple(nodes)


ORDERED = [
    ("b,a", "b a"),
    ("node[0-3]", "node0 node1 node2 node3"),
    ("n[08-10]", "n08 n09 n10"),
    ("n[3,1-2]", "n3 n1 n2"),
    ("n[0-6/3]x", "n0x n3x n6x"),
    ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
    ("n[2,1],a,u.v+w@b-c.d_e:2222", "n2 n1 a u.v+w@b-c.d_e:2222"),
    ("cs744@h:[60000-60001]", "cs744@h:60000 cs744@h:60001"),
    ("h[1-2]:[28-29]", "h1:28 h1:29 h2:28 h2:29"),
    ("10.0.0.[9-10]", "10.0.0.9 10.0.0.10"),
    ("u@h,h,h:22,v@h", "u@h h h:22 v@h"),
    ("fd00::1,u@[fd00::2],[fd00::3]:22", "fd00::1 u@fd00::2 [fd00::3]:22"),
    ("fd00::[1-2]", "fd00::1 fd00::2"),
    ("[fe80::1],[fe80::2]:22,fe80::3", "fe80::1 [fe80::2]:22 fe80::3"),
]


@pytest.mark.parametrize(("text", "expected"), ORDERED)
def test_hosts_come_in_the_order_of_writing(text, expected):
    assert names(text) == expected.split()
    assert names(*re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)) == expected.split()


def test_given_user_applies_to_hosts_without_one(read):
    assert [node.name for node in read("a\nb@c", user="me")] == ["me@a", "b@c"]
    assert parse_hosts(["a"], ONE_WORKER, "", user="me") == (NodeSpec("a", ONE_WORKER, "me"),)


INDEX = st.integers(0, 99)
RANGE = st.builds("{0[0]}-{0[1]}".format, st.tuples(INDEX, INDEX).map(sorted)) | INDEX.map(str)
RANGES = st.lists(RANGE, min_size=1, max_size=3)


@given(st.lists(st.tuples(st.sampled_from("abc"), RANGES), min_size=1, max_size=2))
def test_ranges_mean_what_clustershell_makes_of_them(parts):
    text = "-".join(f"{letter}[{','.join(ranges)}]" for letter, ranges in parts)
    expected = set(NodeSet(text))
    try:
        nodes = names(text)
    except UsageError as error:
        assert re.search("already given|more than 4096", str(error))
    else:
        assert set(nodes) == expected
        assert len(nodes) == len(expected)


WORD = st.text(string.ascii_lowercase + string.digits + "_", min_size=1, max_size=8)
HOST = st.builds("{}{}".format, st.sampled_from(string.ascii_letters), WORD)
HOST = HOST | st.ip_addresses(v=4).map(str) | st.builds("{}.{}-x".format, HOST, WORD)
NODE = st.builds(
    NodeSpec,
    host=HOST,
    nproc=st.builds(WorkersPerNode, st.none() | st.integers(1, 9999)),
    user=st.none() | WORD,
    port=st.none() | st.integers(22, 65535),
    address=st.none() | st.ip_addresses(v=4, network="10.0.0.0/8").map(str),
)


def line(node: NodeSpec) -> str:
    address = f" address={node.address}" if node.address else ""
    return f"{node.name} slots={node.nproc}{address}"


@given(
    st.lists(NODE, min_size=1, max_size=8, unique_by=lambda node: node.name.lower()),
    st.sampled_from(["\n", "\r\n", "\n\n", " # comment\n", "\n#x\n\t\n"]),
)
def test_written_hosts_are_read_as_the_same_nodes(tmp_path_factory, nodes, end):
    addresses = [node.address for node in nodes if node.address]
    path = tmp_path_factory.getbasetemp() / "written"
    path.write_bytes("".join(line(node) + end for node in nodes).encode())
    if len(set(addresses)) == len(addresses):
        assert read_hosts(path, WorkersPerNode(7)) == tuple(nodes)


# the dialects of MPI


IPV6_HOST = st.ip_addresses(v=6).map(str)


@given(st.lists(HOST | IPV6_HOST.map("[{}]".format), min_size=1, max_size=4), st.integers(1, 21))
def test_mpich_worker_count_is_refused_by_line_with_slots(hosts, count):
    """In `node0:4`, the number after the colon would be a port here, and ssh has none so low."""
    text = "\n".join(f"{host}:{count}" for host in hosts)
    assert problems(text, read=nodes_from_text) == [
        f"hosts:{line}: '{host}:{count}': ssh has no port {count}; for workers: slots={count}"
        for line, host in enumerate(hosts, 1)
    ]
    (node,) = nodes_from_text(f"{hosts[0]} slots={count}")
    assert node.nproc == WorkersPerNode(count) and node.port is None


@given(HOST, st.integers(1, 9999), st.integers(1, 9999), st.sampled_from(MOST_SLOTS), st.booleans())
def test_open_mpi_slots_are_workers_limited_by_max_slots(host, slots, most, name, swap):
    options = [f"slots={slots}", f"{name}={most}"]
    text = " ".join([host, *(reversed(options) if swap else options)])
    if slots <= most:
        assert nodes_from_text(text) == (NodeSpec(host, WorkersPerNode(slots)),)
    else:
        (problem,) = problems(text, read=nodes_from_text)
        assert f"slots={slots} is more than {name}={most}" in problem


@given(IPV6_HOST, st.none() | WORD, st.none() | st.integers(22, 65535))
def test_the_colons_of_an_ipv6_address_are_its_own(address, user, port):
    login = f"{user}@" if user else ""
    texts = [f"{login}[{address}]" + (f":{port}" if port else "")]
    texts += [] if port else [f"{login}{address}"]
    for text in texts:
        assert nodes_from_text(text) == (NodeSpec(address, ONE_WORKER, user, port),)


# what is refused


HOSTILE = ["-oProxyCommand=x", "a;b", "$(id)", "'a'", '"a"', "`id`", "a|b", "a>b", "a\\b", "~", "*"]
HOSTILE += ["a\nb", "a\x00b", "a\x1bb", "a\u2028b", "a b", "\u0430", "a\ud800", "{a}", "a/b", "-"]
HOSTILE += ["a#b", "@all", "a!b", "a&b", "a^b", "n*", "n?", "n%s", "@*", "a=b"]  # ClusterShell's
HOSTILE += ["a$b", "a'b", "a`b", 'a"b']


@pytest.mark.parametrize("text", HOSTILE)
def test_host_with_shell_or_option_characters_is_refused(text):
    for word in (text, f"{text}@h", f"u@{text}", f"h:{text}", f"h,{text}"):
        (problem,) = problems(word)
        assert problem.isprintable()


def test_all_problems_of_a_hosts_file_are_named_at_once(read):
    found = problems("ok\na;b\nn[3-1],u@\nok\n", read=read)
    places = [problem.partition(": ")[0] for problem in found]
    assert places == ["hosts:2", "hosts:3", "hosts:4"]

    assert len(problems("a;b\n" * 1000, read=read)) == 50


MUCH = [
    "node[0-99999999]",
    ",".join(["n[0-999999]"] * 200),
    "n[1-99999999]",
    "n[1-4096]:[1-4096]",
    "n" + "[0-99]" * 40,
    "n" + "[0-999999999999999999]" * 50_000,
    "n[" + "1," * 400_000 + "1]",
    "," * 1_000_000,
    ",".join(f"n{i}" for i in range(5000)),
    "n[1-" + "9" * 5000 + "]",
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("text", ["n[1-4096]\n" * 50_000, "n[0-999999],\n" * 10_000, None])
def test_a_file_without_end_is_refused_before_it_fills_the_memory(read, text):
    found = problems(text, read=read) if text else problems(Path("/dev/zero"), 1, read=read_hosts)
    assert max(map(len, found)) < 300


@pytest.mark.slow
@pytest.mark.parametrize("text", MUCH, ids=lambda text: text[:20])
def test_huge_host_range_is_refused_without_memory(text):
    found = problems(text)
    assert max(map(len, found)) < 300


def test_the_most_nodes_there_may_be():
    assert len(names("n[1-4095],m")) == len(names("n[0-8190/2]")) == 4096
    assert problems("n[0-8193/2]")[-1].startswith("--hosts: 'n[0-8193/2]' stands for more")
    assert problems("n[1-4095],m,o") == ["--hosts: more than 4096 nodes; give fewer"]


ALPHABET = st.characters() | st.sampled_from("ab01,-[]@:=#. \n\t<;$")
PARTS = ["n[1-2]", "a", "u@", ":22", ",", " slots=", "address=10.0.0.1", "\n", "-", "["]
ALMOST = st.lists(st.sampled_from(PARTS) | st.text(ALPHABET, max_size=3)).map("".join)


def assert_harmless(nodes):
    assert nodes
    for node in nodes:
        is_ipv6 = ":" in node.host and ipaddress.IPv6Address(node.host)
        assert is_ipv6 or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", node.host)
        assert node.user is None or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.+_-]*", node.user)
        assert node.port is None or 1 <= node.port <= 65535
        assert node.nproc.number is None or node.nproc.number >= 1
        assert node.address is None or ipaddress.ip_address(node.address)
    assert len({node.name for node in nodes}) == len(nodes)


MANIFEST = """<rspec xmlns="http://www.geni.net/resources/rspec/3" type="manifest">
<node client_id="node0"><services>{}</services></node></rspec>"""
LOGIN = st.builds(
    '<login username="{}" hostname="{}" port="{}"/>'.format, st.text(ALPHABET), ALMOST, ALMOST
)
OTHERS = ["10.0.0.1", "node0:4", "node0:", " max_slots=", "2", "n[0-9999999]", "[fd00::1]", "gpu"]
DIALECTS = st.lists(st.sampled_from(PARTS + OTHERS) | st.text(ALPHABET, max_size=3)).map("".join)


@fuzzed(st.text(ALPHABET) | ALMOST | DIALECTS | st.lists(LOGIN).map("".join).map(MANIFEST.format))
def test_random_hosts_give_harmless_nodes_or_are_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    read = partial(read_hosts, path, ONE_WORKER, user="me" if "<rspec" in text else None)
    for parse in (read, lambda: parse_hosts([text], ONE_WORKER, "--hosts")):
        try:
            nodes = parse()
        except UsageError as error:
            assert all(each.isprintable() for each in str(error).split("\n"))
        else:
            assert_harmless(nodes)
