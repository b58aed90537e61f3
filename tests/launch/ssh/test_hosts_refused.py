"""What no hosts file and no --hosts may say, and what is said of it."""

import ipaddress
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.ssh.hosts import parse_hosts, read_hosts
from muster.errors import UsageError
from tests.launch.ssh.host_texts import names, refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "hosts: no hosts; write lines as in user@node[0-3]:22 slots=4"),
        ("# nothing\n \n", "hosts: no hosts; "),
        ("a\nb\xff", "hosts:2: host 'bÿ': begin with a letter or digit, and use letters, digits"),
        (b"a\nb\xff", "'hosts': not a text in UTF-8; give a file that can be read"),
        ("user@", "hosts:1: host '': begin with "),
        ("a@b@c", "hosts:1: user 'a@b': begin "),
        ("a b", "hosts:1: 'b' is no option; write lines as in "),
        ("a:", "hosts:1: port '' is not a number from 1 to 65535; write host:22"),
        ("a:70000", "hosts:1: port '70000' is not "),
        ("a:[65535-65536]", "hosts:1: port '65536' is not "),
        ("h:1:2", "hosts:1: 'h:1:2' is not an IP address; "),
        ("n[3-1]", "hosts:1: bad range '3-1' in 'n[3-1]'; write ranges as in node[0-3] or "),
        ("n[1-3/0]", "hosts:1: bad range '1-3/0' in "),
        ("n[1-02]", "hosts:1: bad range '1-02' in "),
        ("n[٣]", "hosts:1: bad range '٣' in "),
        ("n[[1-2]]", "hosts:1: brackets do not match in 'n[[1-2]]'; write ranges as in node[0-3]"),
        ("n1-2]", "hosts:1: brackets do not match in "),
        ("-l@h", "hosts:1: user '-l': begin "),
        ("fe80::1%eth0", "hosts:1: 'fe80::1%eth0' is not an IP address; "),
        ("4", "hosts:1: '4' is not an IP address; "),
        ("10.0.0.010", "hosts:1: '10.0.0.010' is not an IP "),
        ("a" * 500, "hosts:1: 'aaaa"),
        ("a color=red", "hosts:1: unknown option 'color'; known: address, slots"),
        ("a slots=1 slots=2", "hosts:1: slots is given twice; give it once"),
        ("a slots=0", "hosts:1: slots is '0'; give a number from 1 to 9999, or gpu"),
        ("a slots=10000", "hosts:1: slots is '10000'; "),
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
def test_what_is_wrong_is_said_with_its_line_and_what_to_do(problems, text, expected):
    (problem,) = problems(text)
    assert problem.startswith(expected)
    assert ";" in problem


@pytest.mark.parametrize("text", ["@all", "a!b", "a&b", "a^b", "n*", "n?", "n%s", "@*", "a=b"])
def test_no_other_operator_of_node_sets_means_anything(text):
    (problem,) = refused(text)
    assert problem.startswith(("--hosts: host ", "--hosts: user "))


HOSTILE = ["-oProxyCommand=x", "a;b", "$(id)", "'a'", '"a"', "`id`", "a|b", "a>b", "a\\b", "~", "*"]
HOSTILE += [
    "a\nb",
    "a\x00b",
    "a\x1bb",
    "a\u2028b",
    "a b",
    "\u0430",
    "a\ud800",
    "{a}",
    "a/b",
    "a#b",
    "-",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_a_shell_or_ssh_could_take_for_something_else_is_refused(text):
    for word in (text, f"{text}@h", f"u@{text}", f"h:{text}", f"h,{text}"):
        (problem,) = refused(word)
        assert problem.isprintable()


def test_all_problems_are_told_at_once(problems):
    found = problems("ok\na;b\nn[3-1],u@\nok\n")
    places = [problem.partition(": ")[0] for problem in found]
    assert places == ["hosts:2", "hosts:3", "hosts:4"]


def test_of_very_many_problems_the_first_are_told(problems):
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


def test_a_wrong_user_beside_the_hosts_is_refused(read):
    with pytest.raises(UsageError, match="user '-x': begin with a letter"):
        read("a\nb", user="-x")


def test_hosts_of_flags_may_not_be_none_either():
    assert refused() == ["--hosts: no hosts; write them as in user@node[0-3]:22,user@other"]


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
