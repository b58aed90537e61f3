"""Which nodes a manifest of CloudLab's has, how they are reached, and what no manifest may say."""

import pytest

from launch.spec import NodeSpec
from launch.ssh.cloudlab import read_manifest
from launch.ssh.hosts import read_hosts
from muster.errors import UsageError

V2 = "http://www.protogeni.net/resources/rspec/2"
V3 = "http://www.geni.net/resources/rspec/3"
EMULAB = "http://www.protogeni.net/resources/rspec/ext/emulab/1"


def login(user: str, host: str, port: str = "22", prefix: str = "") -> str:
    return (
        f'<{prefix}login authentication="ssh-keys" hostname="{host}" port="{port}"'
        f' username="{user}"/>'
    )


def node(name: str, logins: str) -> str:
    return (
        f'<node client_id="{name}" exclusive="true"><sliver_type name="raw-pc"/>'
        f'<emulab:vnode name="ms1" hardware_type="m510"/><host name="{name}.x" ipv4="192.0.2.9"/>'
        f'<services>{logins}<emulab:console server="boss.example"/></services></node>'
    )


def manifest(*nodes: str, type: str = "manifest", space: str = V3, head: str = "") -> str:
    return (
        f'{head}<rspec xmlns="{space}" xmlns:emulab="{EMULAB}" type="{type}"><!-- x -->'
        f"{''.join(nodes)}</rspec>"
    )


def plain(k: int, prefix: str = "") -> str:
    return node(f"node{k}", login("alice", f"ms{k}.example", prefix=prefix))


NOBODY = {"user": None, "me": None}


def read(text: str, **choices) -> list[str]:
    nodes = read_manifest(text, "gpu", "file.xml", **{**NOBODY, **choices})
    assert {each.nproc for each in nodes} == {"gpu"}
    return [each.name for each in nodes]


def refused(text: str, **choices) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(text, **choices)
    return str(caught.value).split("\n")


FOUR = [f"alice@ms{k}.example:22" for k in range(4)]


def several(k: int) -> str:
    return node(f"node{k}", "".join(login(user, f"ms{k}.example") for user in ("bob", "alice")))


@pytest.mark.parametrize("type", ["manifest", "request"])
@pytest.mark.parametrize("space", [V2, V3])
@pytest.mark.parametrize("head", ["", "<?xml version='1.0'?>", "\n<?xml version='1.0'?>\n<!-- -->"])
def test_nodes_come_in_the_order_of_the_document(type, space, head):
    nodes = plain(3, "emulab:"), *map(plain, (0, 2, 1))
    assert read(manifest(*nodes, type=type, space=space, head=head)) == [
        FOUR[k] for k in (3, 0, 2, 1)
    ]


def test_virtual_machines_share_a_host_and_listen_on_ports_of_their_own():
    nodes = [node(f"n{k}", login("alice", "pc9.example", f"3075{k}")) for k in (4, 5)]
    assert read(manifest(*nodes)) == ["alice@pc9.example:30754", "alice@pc9.example:30755"]


def test_a_disk_on_the_network_is_no_node():
    disk = '<node client_id="d"><sliver_type name="emulab-blockstore"/></node>'
    assert read(manifest(plain(0), disk, plain(1))) == FOUR[:2]


def test_a_hosts_file_may_be_a_manifest(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"\n {manifest(plain(0), plain(1))}")
    assert read_hosts(path, 2)[0] == NodeSpec("ms0.example", 2, "alice", 22)
    path.write_text(manifest(several(0), several(1)))
    assert read_hosts(path, 2, user="bob")[1].name == "bob@ms1.example:22"


# who logs in


@pytest.mark.parametrize(
    ("choices", "user"),
    [
        ({"user": "alice"}, "alice"),
        ({"user": "bob", "me": "alice"}, "bob"),
        ({"me": "bob"}, "bob"),
    ],
)
def test_of_several_members_one_is_chosen(choices, user):
    nodes = read_manifest(manifest(several(0), several(1)), 1, "", **{**NOBODY, **choices})
    assert [each.user for each in nodes] == [user, user]


@pytest.mark.parametrize("choices", [{}, {"me": "carol"}, {"user": ""}])
def test_of_several_members_none_is_guessed(choices):
    expected = "file.xml: several people can log in: alice, bob; choose with --user"
    assert refused(manifest(several(0), several(1)), **choices) == [expected]


def test_a_user_must_be_a_member_on_every_node():
    text = manifest(several(0), plain(1))
    expected = "file.xml: node 'node1': 'bob' cannot log in, only alice can; choose with --user"
    assert refused(text, user="bob") == [expected]
    assert len(refused(text, user="-x")) == 2


# what is refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<rspec>\n<node></rspec>", "file.xml: not XML: mismatched tag: line 2, column 8; give"),
        ("", "file.xml: not XML: no element found: "),
        ("<a>\x00</a>", "file.xml: not XML: "),
        ("<a>\ud800</b>", "file.xml: not XML: "),
        ("<a>&x;</a>", "file.xml: not XML: undefined entity"),
        ("<a xmlns='x'/>", "file.xml: 'a of type None', not an rspec of type manifest; "),
        (manifest(plain(0), type="advertisement"), "file.xml: 'rspec of type advertisement', not"),
        ("<rspec/>", "file.xml: 'rspec of type None', not "),
        (manifest(), "file.xml: no nodes; give the manifest of a running experiment"),
        (manifest("<node client_id='a'/>"), "file.xml: node 'a': nobody can log in there; "),
        (
            manifest(plain(0), plain(0)),
            "file.xml: node 'node0': node alice@ms0.example:22 was given before, at file.xml: node",
        ),
    ],
)
def test_a_wrong_manifest_is_refused(text, expected):
    found = refused(text)
    assert found[0].startswith(expected)
    assert ";" in found[0]


def test_entities_that_grow_are_refused():
    laughs = "".join(f"<!ENTITY l{k} '{f'&l{k - 1};' * 20}'>" for k in range(1, 20))
    head = f"<?xml version='1.0'?>\n<!DOCTYPE rspec [<!ENTITY l0 'ha'>{laughs}]>"
    (problem,) = refused(manifest(plain(0).replace("node0", "&l19;"), head=head))
    assert "limit on input amplification factor" in problem


def test_all_problems_are_named_at_once():
    bare = node("b", login("bob", "b"))
    assert len(refused(manifest(node("a", login("-a", "b", "0")), node("c", "")))) == 2
    hostile = node("a", login("-oProxyCommand=x", "h")), node("b", login("u", "$(id)"))
    assert len(refused(manifest(*hostile, node("c", login("u", "h", "a&#10;b"))))) == 3
    assert len(refused(manifest(several(0), bare), user="carol")) == 2
