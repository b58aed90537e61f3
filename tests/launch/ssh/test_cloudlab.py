"""Which nodes a CloudLab manifest has, how they are reached, and which manifests are refused."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.settings.launch import ONE_WORKER, WorkersPerNode
from launch.spec import NodeSpec
from launch.ssh.cloudlab import read_manifest
from launch.ssh.hosts import read_hosts
from muster.errors import UsageError
from tests.commands import refusal

V2 = "http://www.protogeni.net/resources/rspec/2"
V3 = "http://www.geni.net/resources/rspec/3"
EMULAB = "http://www.protogeni.net/resources/rspec/ext/emulab/1"


def login(user: str, host: str, port: str = "22", prefix: str = "") -> str:
    return (
        f'<{prefix}login authentication="ssh-keys" hostname="{host}" port="{port}"'
        f' username="{user}"/>'
    )


def node(name: str, *logins: str, lan: str = "10.10.1.1", sliver: str = "raw-pc") -> str:
    return (
        f'<node client_id="{name}" exclusive="true"><sliver_type name="{sliver}"/>'
        f'<interface client_id="node:eth1"><ip address="{lan}" type="ipv4"/></interface>'
        f'<emulab:vnode name="ms1" hardware_type="m510"/><host name="{name}.x" ipv4="192.0.2.9"/>'
        f'<services>{"".join(logins)}<emulab:console server="boss.example"/></services></node>'
    )


def manifest(*nodes: str, type: str = "manifest", space: str = V3, head: str = "") -> str:
    return (
        f'{head}<rspec xmlns="{space}" xmlns:emulab="{EMULAB}" type="{type}"><!-- x -->'
        f"{''.join(nodes)}</rspec>"
    )


def plain(k: int, *users: str) -> str:
    return node(f"node{k}", *(login(user, f"ms{k}.example") for user in users or ["alice"]))


def read(text: str, user: str | None = None, me: str | None = None) -> list[str]:
    return [each.name for each in read_manifest(text, ONE_WORKER, "file.xml", user=user, me=me)]


def problems(text: str, **choices: str) -> list[str]:
    return refusal(read, text, **choices).split("\n")


FOUR = [f"alice@ms{k}.example:22" for k in range(4)]
OF_TWO = manifest(plain(0, "bob", "alice"), plain(1, "bob", "alice"))


@pytest.mark.parametrize("type", ["manifest", "request"])
@pytest.mark.parametrize("space", [V2, V3])
@pytest.mark.parametrize("head", ["", "<?xml version='1.0'?>", "\n<?xml version='1.0'?>\n<!-- -->"])
def test_an_experiment_of_four_nodes(type, space, head):
    assert read(manifest(*map(plain, range(4)), type=type, space=space, head=head)) == FOUR


VIRTUAL = [node(f"n{k}", login("alice", "pc9.example", f"3075{k}")) for k in (4, 5)]
DISK = '<node client_id="d"><sliver_type name="emulab-blockstore"/></node>'


DOCUMENTS = [
    (map(plain, (3, 0, 2, 1)), [FOUR[k] for k in (3, 0, 2, 1)]),
    ([node("n", login("alice", "ms0.example", prefix="emulab:"))], FOUR[:1]),
    (VIRTUAL, ["alice@pc9.example:30754", "alice@pc9.example:30755"]),
    ([plain(0), DISK, plain(1)], FOUR[:2]),
]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    DOCUMENTS,
    ids=["in the order of the document", "a prefix", "ports of one host", "a disk is no node"],
)
def test_nodes_are_those_of_the_document(nodes, expected):
    assert read(manifest(*nodes)) == expected


def test_a_hosts_file_may_be_a_manifest(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"\n {manifest(plain(0), plain(1))}")
    assert read_hosts(path, WorkersPerNode(2))[0] == NodeSpec(
        "ms0.example", WorkersPerNode(2), "alice", 22
    )
    path.write_text(OF_TWO)
    assert read_hosts(path, WorkersPerNode(2), user="bob")[1].name == "bob@ms1.example:22"


# who logs in


@pytest.mark.parametrize(
    ("choices", "user"),
    [({"user": "alice"}, "alice"), ({"user": "bob", "me": "alice"}, "bob"), ({"me": "bob"}, "bob")],
)
def test_user_flag_chooses_among_members_of_a_manifest(choices, user):
    assert read(OF_TWO, **choices) == [f"{user}@ms{k}.example:22" for k in (0, 1)]


def test_a_user_must_be_a_member_on_every_node():
    text = manifest(plain(0, "bob", "alice"), plain(1))
    (line,) = problems(text, user="bob")
    assert line.startswith("file.xml: node 'node1': 'bob'")
    assert len(problems(text, user="-x")) == 2


# what is refused


def test_entities_that_grow_are_refused():
    laughs = "".join(f"<!ENTITY l{k} '{f'&l{k - 1};' * 20}'>" for k in range(1, 20))
    head = f"<?xml version='1.0'?>\n<!DOCTYPE rspec [<!ENTITY l0 'ha'>{laughs}]>"
    (problem,) = problems(manifest(plain(0).replace("node0", "&l19;"), head=head))
    assert "amplification" in problem


ATTRIBUTE = st.text(st.characters(exclude_characters="<&\"'"), max_size=8) | st.just("10.0.0.1")


@given(st.text() | st.builds(lambda text: f"<{text}>", st.text()), ATTRIBUTE, ATTRIBUTE)
def test_random_manifest_gives_harmless_nodes_or_is_refused(junk, first, second):
    one = node(first, login(second, first, first), lan=second, sliver=junk)
    for text in (junk, manifest(one)):
        try:
            nodes = read_manifest(text, ONE_WORKER, "file.xml", user=None, me=None)
        except UsageError as error:
            assert all(each.isprintable() for each in str(error).split("\n"))
            continue
        for each in nodes:
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*|[0-9a-f:]+", each.host)
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.+_-]*", each.user or "u")
