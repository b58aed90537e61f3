"""Which nodes a manifest of CloudLab's has, and how they are reached."""

import pytest

from launch.spec import NodeSpec
from launch.ssh.cloudlab import read_manifest
from launch.ssh.hosts import read_hosts
from tests.launch.ssh.manifests import (
    FOUR,
    V2,
    V3,
    lan,
    login,
    manifest,
    node,
    plain,
    read,
    refused,
    several,
)


@pytest.mark.parametrize("type", ["manifest", "request"])
@pytest.mark.parametrize("space", [V2, V3])
@pytest.mark.parametrize("head", ["", "<?xml version='1.0'?>", "\n<?xml version='1.0'?>\n<!-- -->"])
def test_an_experiment_of_four_nodes(type, space, head):
    assert read(manifest(*map(plain, range(4)), type=type, space=space, head=head)) == FOUR


def test_the_document_decides_who_has_rank_0():
    assert read(manifest(*map(plain, (3, 0, 2, 1)))) == [FOUR[k] for k in (3, 0, 2, 1)]


def test_a_login_with_a_prefix():
    logins = login("alice", "ms0.example", prefix="emulab:")
    assert read(manifest(node("n", logins))) == [("alice@ms0.example:22", None)]


def test_virtual_machines_share_a_host_and_listen_on_ports_of_their_own():
    nodes = [
        node(f"n{k}", login("alice", "pc9.example", f"3075{k}"), lan(f"10.10.1.{k + 1}"))
        for k in (4, 5)
    ]
    assert read(manifest(*nodes)) == [
        ("alice@pc9.example:30754", "10.10.1.5"),
        ("alice@pc9.example:30755", "10.10.1.6"),
    ]


def test_a_disk_on_the_network_is_no_node():
    disk = '<node client_id="d"><sliver_type name="emulab-blockstore"/></node>'
    assert read(manifest(plain(0), disk, plain(1))) == FOUR[:2]


def test_a_hosts_file_may_be_a_manifest(tmp_path):
    path = tmp_path / "hosts"
    path.write_text(f"\n {manifest(plain(0), plain(1))}")
    assert read_hosts(path, 2)[0] == NodeSpec("ms0.example", 2, "alice", 22, "10.10.1.1")
    path.write_text(manifest(several(0), several(1)))
    assert read_hosts(path, 2, user="bob", network="10.10.1.0/24")[1].name == "bob@ms1.example:22"


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
    nodes = read_manifest(manifest(several(0), several(1)), 1, "", **choices)
    assert [each.user for each in nodes] == [user, user]


@pytest.mark.parametrize("choices", [{}, {"me": "carol"}, {"user": ""}])
def test_of_several_members_none_is_guessed(choices):
    expected = "file.xml: several people can log in: alice, bob; choose with --user"
    assert refused(manifest(several(0), several(1)), **choices) == [expected]


def test_who_i_am_here_does_not_matter_where_there_is_one_member():
    assert read(manifest(plain(0)), me="carol") == [("alice@ms0.example:22", "10.10.1.1")]


def test_a_user_must_be_a_member_on_every_node():
    text = manifest(several(0), plain(1))
    expected = "file.xml: node 'node1': 'bob' cannot log in, only alice can; choose with --user"
    assert refused(text, user="bob") == [expected]
    assert len(refused(text, user="-x")) == 2


# where they train


def test_of_several_lans_the_one_that_has_all_nodes_is_taken():
    both = lan("10.0.0.1", "255.0.0.0") + lan("10.10.2.1")
    text = manifest(
        node("a", login("u", "a"), lan("10.10.3.1") + both),
        node("b", login("u", "b"), lan("10.10.3.2") + lan("10.10.2.2")),
        node("c", login("u", "c"), lan("10.10.2.3") + lan("fe80::1", "64", "ipv6")),
    )
    assert [address for _, address in read(text)] == ["10.10.2.1", "10.10.2.2", "10.10.2.3"]


def test_an_address_is_of_the_lan_and_not_only_alike():
    text = manifest(
        node("a", login("u", "a"), lan("10.10.2.1") + lan("10.0.0.1", "255.0.0.0")),
        node("b", login("u", "b"), lan("10.0.0.2", "255.0.0.0")),
    )
    assert [address for _, address in read(text)] == ["10.0.0.1", "10.0.0.2"]


def test_of_several_lans_that_have_all_nodes_one_is_chosen():
    text = manifest(*(several(k, lan(f"10.10.1.{k}") + lan(f"10.10.2.{k}")) for k in (1, 2)))
    expected = (
        "file.xml: the nodes share several LANs: 10.10.1.0/24, 10.10.2.0/24; choose with --network"
    )
    assert refused(text, user="bob") == [expected]
    for network in ("10.10.2.0/24", "10.10.2.0/23"):
        addresses = [address for _, address in read(text, user="bob", network=network)]
        assert addresses == ["10.10.2.1", "10.10.2.2"]


def test_a_network_that_is_none_or_has_not_all_nodes():
    text = manifest(plain(0), plain(1))
    expected = "file.xml: --network 'eth0' is none; write e.g. 10.10.1.0/24"
    assert refused(text, network="eth0") == [expected]
    expected = (
        "file.xml: node 'node1': has no address in 10.10.1.0/31, but 10.10.1.2/24;"
        " add the nodes to one LAN"
    )
    assert refused(text, network="10.10.1.0/31") == [expected]


def test_nodes_without_an_address():
    bare = [node(name, login("alice", name)) for name in "bc"]
    assert refused(manifest(plain(0), *bare)) == [
        f"file.xml: node {name!r}: has no experiment address; add the nodes to one LAN"
        for name in "bc"
    ]


def test_nodes_that_share_no_lan():
    text = manifest(plain(0), node("b", login("alice", "b"), lan("10.10.2.1")))
    expected = (
        "file.xml: no LAN has all 2 nodes (10.10.1.0/24 1, 10.10.2.0/24 1);"
        " add the nodes to one LAN"
    )
    assert refused(text) == [expected]


@pytest.mark.parametrize("lans", ["", lan("10.10.1.1") + lan("10.10.2.1")])
def test_a_single_node_needs_no_lan(lans):
    assert read(manifest(node("a", login("u", "a"), lans))) == [("u@a:22", None)]


def test_the_control_network_is_no_address():
    assert "192.0.2.9" in manifest(plain(0))
    assert "192.0.2.9" not in str(read(manifest(plain(0), plain(1))))
