"""Which nodes a manifest of CloudLab's has, how they are reached, and what no manifest may say."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def lan(address: str, netmask: str = "255.255.255.0", type: str = "ipv4") -> str:
    return (
        '<interface client_id="node:eth1" mac_address="020000000001">'
        f'<ip address="{address}" type="{type}" netmask="{netmask}"/></interface>'
    )


def node(name: str, logins: str, lans: str = "", sliver: str = "raw-pc") -> str:
    return (
        f'<node client_id="{name}" exclusive="true"><sliver_type name="{sliver}"/>{lans}'
        f'<emulab:vnode name="ms1" hardware_type="m510"/><host name="{name}.x" ipv4="192.0.2.9"/>'
        f'<services>{logins}<emulab:console server="boss.example"/></services></node>'
    )


def manifest(*nodes: str, type: str = "manifest", space: str = V3, head: str = "") -> str:
    return (
        f'{head}<rspec xmlns="{space}" xmlns:emulab="{EMULAB}" type="{type}"><!-- x -->'
        f"{''.join(nodes)}</rspec>"
    )


def plain(k: int, **kwargs) -> str:
    return node(f"node{k}", login("alice", f"ms{k}.example"), lan(f"10.10.1.{k + 1}"), **kwargs)


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


def several(k: int, lans: str = "") -> str:
    logins = "".join(login(user, f"ms{k}.example") for user in ("bob", "alice"))
    return node(f"node{k}", logins, lans or lan(f"10.10.1.{k + 1}"))


@pytest.mark.parametrize("type", ["manifest", "request"])
@pytest.mark.parametrize("space", [V2, V3])
@pytest.mark.parametrize("head", ["", "<?xml version='1.0'?>", "\n<?xml version='1.0'?>\n<!-- -->"])
def test_an_experiment_of_four_nodes(type, space, head):
    assert read(manifest(*map(plain, range(4)), type=type, space=space, head=head)) == FOUR


def test_the_document_decides_who_has_rank_0():
    assert read(manifest(*map(plain, (3, 0, 2, 1)))) == [FOUR[k] for k in (3, 0, 2, 1)]


def test_a_login_with_a_prefix():
    logins = login("alice", "ms0.example", prefix="emulab:")
    assert read(manifest(node("n", logins))) == ["alice@ms0.example:22"]


def test_virtual_machines_share_a_host_and_listen_on_ports_of_their_own():
    nodes = [
        node(f"n{k}", login("alice", "pc9.example", f"3075{k}"), lan(f"10.10.1.{k + 1}"))
        for k in (4, 5)
    ]
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
            manifest(plain(0), plain(0).replace("10.10.1.1", "10.10.1.2")),
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


HOSTILE = ["-oProxyCommand=x", "a;b", "$(id)", "&quot;a&quot;", "a b", "a&#10;b", "", "n[1-2]"]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("what", ["user", "host", "port"])
def test_what_a_shell_or_ssh_could_take_for_something_else_is_refused(what, text):
    fields = {"user": "u", "host": "h", "port": "22"} | {what: text}
    found = node("a", login(fields["user"], fields["host"], fields["port"]))
    if what == "port" and not text:
        assert read(manifest(found)) == ["u@h"]
        return
    problems = refused(manifest(found))
    assert problems[0].startswith(f"file.xml: node 'a': {what} ")
    assert all(each.isprintable() for each in problems)


def test_all_problems_are_named_at_once():
    bare = node("b", login("bob", "b"))
    assert len(refused(manifest(node("a", login("-a", "b", "0")), node("c", "")))) == 2
    assert len(refused(manifest(several(0), bare), user="carol")) == 2


ATTRIBUTE = st.text(st.characters(exclude_characters="<&\"'"), max_size=8) | st.just("10.0.0.1")


@given(st.text() | st.builds(lambda text: f"<{text}>", st.text()), ATTRIBUTE, ATTRIBUTE)
def test_any_text_gives_harmless_nodes_or_is_refused(junk, first, second):
    for text in (
        junk,
        manifest(node(first, login(second, first, first), lan(second, first), junk)),
    ):
        try:
            nodes = read_manifest(text, 1, "file.xml", user=None, me=None)
        except UsageError as error:
            assert all(each.isprintable() for each in str(error).split("\n"))
            continue
        for each in nodes:
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+-]*|[0-9a-f:]+", each.host)
            assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9.+_-]*", each.user or "u")
