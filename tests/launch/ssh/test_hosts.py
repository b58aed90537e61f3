"""What hosts files and --hosts are read as, and what is said of those that are refused."""

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.spec import NodeSpec
from launch.ssh.hosts import parse_hosts, read_hosts
from muster.errors import UsageError


def names(*words: str) -> list[str]:
    return [node.name for node in parse_hosts(words, 1, "--hosts")]


def refused(*words: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        parse_hosts(words, 1, "--hosts")
    return str(caught.value).split("\n")


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
    of_other_editors = read(b"\xef\xbb\xbfb,n[1-2] slots=3\r\na\r\n")
    assert [(node.name, node.nproc) for node in of_other_editors] == [
        ("b", 3), ("n1", 3), ("n2", 3), ("a", 1)
    ]  # fmt: skip


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
    with pytest.raises(UsageError, match="user '-x': begin with a letter"):
        read("a\nb", user="-x")


# what is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hosts: no hosts; write lines as in user@node[0-3]:22 slots=4"),
        ("# nothing\n \n", "hosts: no hosts; "),
        ("\n <html/>", "hosts: 'html of type None', not an rspec of type manifest; "),
        ("a\nb\xff", "hosts:2: host 'bÿ': begin with a letter or digit, and use letters, digits"),
        (b"a\nb\xff", "'hosts': not a text in UTF-8; give a file that can be read"),
        ("user@", "hosts:1: host '': begin with "),
        ("a@b@c", "hosts:1: user 'a@b': begin "),
        ("a b", "hosts:1: 'b' is no option, as address and slots are; write lines as in "),
        ("a:", "hosts:1: port '' is not a number from 1 to 65535; write host:22"),
        ("a:[65535-65536]", "hosts:1: port '65536' is not "),
        ("h:1:2", "hosts:1: 'h:1:2' is not an IP address; "),
        ("n[3-1]", "hosts:1: bad range '3-1' in 'n[3-1]'; write ranges as in node[0-3] or "),
        ("n[1-02]", "hosts:1: bad range '1-02' in "),
        ("n[٣]", "hosts:1: bad range '٣' in "),
        ("n[[1-2]]", "hosts:1: brackets do not match in 'n[[1-2]]'; write ranges as in node[0-3]"),
        ("fe80::1%eth0", "hosts:1: 'fe80::1%eth0' is not an IP address; "),
        ("4", "hosts:1: '4' is not an IP address; "),
        ("10.0.0.010", "hosts:1: '10.0.0.010' is not an IP "),
        ("a" * 500, "hosts:1: 'aaaa"),
        ("a color=red", "hosts:1: 'color=red' is no option, as address and slots are; "),
        ("a slots=0", "hosts:1: slots is '0'; give a number from 1 to 9999, or gpu"),
        ("a\nb\na", "hosts:3: node a was given before, at hosts:1; give it once"),
        ("u@a:22\nu@A:22", "hosts:2: node u@A:22 was given before, at hosts:1; "),
        (
            "a address=10.0.0.1\nb address=10.0.0.1",
            "hosts:2: address 10.0.0.1 was given before, at hosts:1; give it once",
        ),
        ("n[1-2] address=10.0.0.1", "hosts:1: one address, but 'n[1-2]' is several nodes; "),
        ("a address=", "hosts:1: '' is not an IP address; write e.g. 10.10.1.1"),
        ("a address=fe80::1", "hosts:1: other nodes cannot reach fe80::1; "),
        ("a address=127.0.0.1", "hosts:1: other nodes cannot reach 127.0.0.1; give the node's own"),
    ],
)
def test_a_wrong_line_is_named_with_what_to_do(problems, text, expected):
    (problem,) = problems(text)
    assert problem.startswith(expected)
    assert ";" in problem


HOSTILE = ["-oProxyCommand=x", "a;b", "$(id)", "'a'", '"a"', "`id`", "a|b", "a>b", "a\\b", "~", "*"]
HOSTILE += ["a\nb", "a\x00b", "a\x1bb", "a\u2028b", "a b", "\u0430", "a\ud800", "{a}", "a/b", "-"]
HOSTILE += ["a#b", "@all", "a!b", "a&b", "a^b", "n*", "n?", "n%s", "@*", "a=b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_shell_or_ssh_could_take_for_something_else_is_refused(text):
    for word in (text, f"{text}@h", f"u@{text}", f"h:{text}", f"h,{text}"):
        (problem,) = refused(word)
        assert problem.isprintable()


def test_all_problems_are_named_at_once(problems):
    found = problems("ok\na;b\nn[3-1],u@\nok\n")
    places = [problem.partition(": ")[0] for problem in found]
    assert places == ["hosts:2", "hosts:3", "hosts:4"]
    assert len(problems("a;b\n" * 1000)) == 50


def test_a_file_that_cannot_be_read(tmp_path):
    for path, reason in (
        (tmp_path / "none", "none': No such file or directory; give a file that can be read"),
        (tmp_path, ": Is a directory; "),
        (tmp_path / "a\0b", "; give a file that can be read"),
    ):
        with pytest.raises(UsageError, match=re.escape(reason)) as caught:
            read_hosts(path, 1)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999]",
        "n[1-4096]:[1-4096]",
        "n" + "[0-99]" * 40,
        "n" + "[0-999999999999999999]" * 50_000,
        "n[" + "1," * 400_000 + "1]",
        "," * 1_000_000,
        ",".join(f"n{i}" for i in range(5000)),
        "n[1-" + "9" * 5000 + "]",
    ],
    ids=lambda text: text[:20],
)
def test_what_would_fill_the_memory_is_refused_before(text):
    found = refused(text)
    assert max(map(len, found)) < 300


def test_the_most_nodes_there_may_be():
    assert len(names("n[1-4095],m")) == len(names("n[0-8190/2]")) == 4096
    assert refused("n[0-8193/2]")[-1].startswith("--hosts: 'n[0-8193/2]' makes more")
    assert refused("n[1-4095],m,o") == ["--hosts: more than 4096 nodes; give fewer"]
    assert refused() == ["--hosts: no hosts; write them as in user@node[0-3]:22,user@other"]


ALPHABET = st.characters() | st.sampled_from("ab01,-[]@:=#. \n\t<;$")
ALMOST = st.lists(
    st.sampled_from(
        ["n[1-2]", "a", "u@", ":22", ",", " slots=", "address=10.0.0.1", "\n", "-", "["]
    )
    | st.text(ALPHABET, max_size=3)
).map("".join)


def assert_harmless(nodes):
    assert nodes
    for node in nodes:
        is_ipv6 = ":" in node.host and ipaddress.IPv6Address(node.host)
        assert is_ipv6 or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*", node.host)
        assert node.user is None or re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.+_-]*", node.user)
        assert node.port is None or 1 <= node.port <= 65535
        assert node.nproc == "gpu" or node.nproc >= 1
        assert node.address is None or ipaddress.ip_address(node.address)
    assert len({node.name for node in nodes}) == len(nodes)


@given(st.text(ALPHABET) | ALMOST)
def test_any_text_gives_harmless_nodes_or_is_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for parse in (lambda: read_hosts(path, 1), lambda: parse_hosts([text], 1, "--hosts")):
        try:
            nodes = parse()
        except UsageError as error:
            assert all(each.isprintable() for each in str(error).split("\n"))
        else:
            assert_harmless(nodes)
