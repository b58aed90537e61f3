"""Which nodes a manifest of CloudLab's has, and how they are reached."""

import pytest

from launch.spec import NodeSpec
from launch.ssh.cloudlab import read_manifest
from launch.ssh.hosts import read_hosts
from tests.launch.ssh.manifests import (
    FOUR,
    NOBODY,
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
