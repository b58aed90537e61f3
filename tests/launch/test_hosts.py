"""Hosts as people write them: in their order, or refused with the place and the reason."""

import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from launch import hosts
from launch.spec import NodeSpec

NAMES = st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True)
SPECS = st.builds(
    NodeSpec,
    host=NAMES,
    nproc=st.one_of(st.integers(1, 99), st.just("gpu")),
    user=st.one_of(st.none(), st.from_regex(r"[a-z][a-z0-9_.]{0,6}", fullmatch=True)),
    port=st.one_of(st.none(), st.integers(1, 65535)),
)


def names(*lines: str) -> list[str]:
    return [spec.name for spec in hosts.parse([("f:1: ", line) for line in lines], 1)]


def problem(*lines: str) -> str:
    numbered = [(f"f:{number}: ", line) for number, line in enumerate(lines, start=1)]
    with pytest.raises(UsageError) as caught:
        hosts.parse(numbered, 1)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("node0", ["node0"]),
        ("b,a", ["b", "a"]),
        ("node[3,1-2]", ["node3", "node1", "node2"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("me@node[0-1]:2222", ["me@node0:2222", "me@node1:2222"]),
        ("rack[1-2]n[1-2]", ["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
        ("cs744@host:[60000-60003]", [f"cs744@host:{port}" for port in range(60000, 60004)]),
        ("10.10.1.1,10.10.1.2", ["10.10.1.1", "10.10.1.2"]),
        ("node[0-1].example.org", ["node0.example.org", "node1.example.org"]),
    ],
)
def test_names_and_ranges_keep_their_order(line, found):
    assert names(line) == found


def test_a_file_has_slots_addresses_comments_and_blank_lines(tmp_path):
    path = tmp_path / "hosts.txt"
    path.write_text(
        "# my machines\n\nfast slots=8\nslow slots=gpu address=10.10.1.2  # the old one\nlast\n"
    )
    assert hosts.read(str(path), 3) == (
        NodeSpec("fast", 8),
        NodeSpec("slow", "gpu", address="10.10.1.2"),
        NodeSpec("last", 3),
    )


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("n[3-1]", "n[3-1]"),
        ("n[1-,4]", "'1-' is no range"),
        ("n[1-2", "brackets"),
        ("n[[1-2]]", "brackets"),
        ("n[1-99999999]", "more than 4096 nodes"),
        ("n[1-99]m[1-99]", "more than 4096 nodes"),
        ("user@", "no host's name"),
        ("-oProxyCommand=x", "no host's name"),
        ("a;b", "no host's name"),
        ("$(id)", "no host's name"),
        ("`id`", "no host's name"),
        ("@group", "no user's name"),
        ("a!b", "no host's name"),
        ("a&b", "no host's name"),
        ("node*", "no host's name"),
        ("node:0", "port '0'"),
        ("node:70000", "port '70000'"),
        ("node:ssh", "port 'ssh'"),
        ("-l@node", "no user's name"),
        ("node slots=0", "slots=0"),
        ("node slots=-1", "slots=-1"),
        ("node slots=many", "slots=many"),
        ("node cores=4", "unknown 'cores=4'; known: slots=N, address=A"),
        ("node0 node1", "unknown 'node1'"),
        ("node address=10.10.1", "is not an IPv4 address"),
        ("node address=127.0.0.1", "other nodes cannot reach"),
        ("node[0-1] address=10.10.1.1", "is of one node"),
        ("node\x1b[31m", "control characters"),
        ("a,,b", "two commas"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(line, said):
    text = problem("good", line)
    assert text.startswith("f:2: ") and said in text and "\x1b" not in text


def test_all_problems_come_at_once():
    text = problem("a", "a", "b slots=0", "c address=10.0.0.1", "d address=10.0.0.1")
    assert text.splitlines() == [
        "f:2: a is there already (f:1)",
        "f:3: slots=0: use a number from 1 up, or gpu",
        "f:5: address 10.0.0.1 is c's already",
    ]


def test_files_that_are_none(tmp_path):
    (tmp_path / "empty.txt").write_text("# nobody\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in [
        ("missing.txt", "no such file"),
        ("empty.txt", "no hosts in it"),
        ("binary", "not a text file"),
    ]:
        with pytest.raises(UsageError, match=said):
            hosts.read(str(tmp_path / name), 1)


@given(st.lists(SPECS, min_size=1, max_size=8, unique_by=lambda one: one.name))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_back_in_its_order(specs):
    lines = [("f: ", f"{spec.name} slots={spec.nproc}") for spec in specs]
    assert list(hosts.parse(lines, 1)) == specs


@given(st.text(alphabet=st.one_of(st.sampled_from(string.printable), st.characters()), max_size=40))
@settings(max_examples=400, deadline=None)
def test_any_text_is_refused_or_safe(text):
    try:
        found = hosts.parse([("f: ", text)], 1)
    except UsageError:
        return
    for spec in found:
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", spec.host)
        assert spec.user is None or re.fullmatch(r"[A-Za-z0-9._+][A-Za-z0-9._+-]*", spec.user)
