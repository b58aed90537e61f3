"""A CloudLab manifest says who may log in where, in all the forms it comes in."""

import pytest

from configs.errors import UsageError
from launch import cloudlab, hosts
from launch.spec import NodeSpec

V3 = "http://www.geni.net/resources/rspec/3"
V2 = "http://www.protogeni.net/resources/rspec/2"
LOGIN = '<login hostname="{host}" port="{port}" username="{user}"/>'
IP = '<interface client_id="i"><ip address="{}" type="ipv4" netmask="255.255.255.0"/></interface>'


def node(index, *, users=("me",), port=22, ips=(None,), prefix=""):
    found = [f"10.10.1.{index + 1}" if ip is None else ip for ip in ips]
    logins = "".join(
        LOGIN.format(host=f"ms{index}.site.us", port=port, user=user).replace(
            "<login", f"<{prefix}login"
        )
        for user in users
    )
    return (
        f'<node client_id="node{index}">{"".join(map(IP.format, found))}'
        f'<host name="node{index}.exp.us" ipv4="128.110.0.{index}"/>'
        f"<services>{logins}</services></node>"
    )


def manifest(*nodes, namespace=V3, kind="manifest"):
    return (
        f'<?xml version="1.0"?>\n<rspec xmlns="{namespace}" xmlns:emulab="urn:e" '
        f'type="{kind}">{"".join(nodes)}</rspec>'
    )


def read(text, user=None, network=None):
    return cloudlab.read(text, 1, user=user, network=network, where="m.xml: ")


def problem(text, **more):
    with pytest.raises(UsageError) as caught:
        read(text, **more)
    return str(caught.value)


@pytest.mark.parametrize("namespace", [V3, V2])
@pytest.mark.parametrize("kind", ["manifest", "request"])
@pytest.mark.parametrize("prefix", ["", "emulab:"])
def test_every_form_gives_the_same_nodes(namespace, kind, prefix):
    text = manifest(*(node(i, prefix=prefix) for i in range(4)), namespace=namespace, kind=kind)
    assert read(text) == tuple(
        NodeSpec(f"ms{i}.site.us", 1, user="me", port=22, address=f"10.10.1.{i + 1}")
        for i in range(4)
    )


def test_it_may_be_given_as_a_hosts_file(tmp_path):
    path = tmp_path / "manifest.xml"
    path.write_text(manifest(node(0), node(1, port=30754)))
    found = hosts.read(str(path), "gpu")
    assert [(spec.port, spec.nproc) for spec in found] == [(22, "gpu"), (30754, "gpu")]


def test_one_login_of_several_is_chosen():
    text = manifest(node(0, users=("ann", "bob")), node(1, users=("ann", "bob")))
    assert {spec.user for spec in read(text, user="bob")} == {"bob"}
    assert "node0 has several logins; choose: --user ann | bob" in problem(text)
    assert "has no login for eve; it has ann, bob" in problem(text, user="eve")


def test_one_network_of_several_is_chosen():
    text = manifest(*(node(i, ips=(None, f"192.168.9.{i + 1}")) for i in range(2)))
    assert "10.10.1.0/24 and 192.168.9.0/24; choose one with --network" in problem(text)
    assert [spec.address for spec in read(text, network="192.168.9.0/24")] == [
        "192.168.9.1",
        "192.168.9.2",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<rspec", "not XML"),
        (f'<!DOCTYPE rspec [<!ENTITY a "b">]>{manifest(node(0))}', "has a DOCTYPE"),
        ("<html/>", "its root is <html>"),
        (manifest(), "has no nodes"),
        (manifest(node(0, users=())), "node0 has no login: is the experiment ready?"),
        (manifest(node(0, ips=()), node(1, ips=())), "share no network"),
        (manifest(node(0), node(1, ips=("10.10.2.2",))), "add all of them to one LAN"),
        (manifest(node(0), node(0)), "share no network"),
        (manifest(node(0), node(0, ips=("10.10.1.9",))), "two nodes have the login ms0.site.us:22"),
        (manifest(node(0, port=0)), "the port '0', which is none"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(text, said):
    line = problem(text)
    assert line.startswith("m.xml: ") and said in line and "\n" not in line


def test_a_node_alone_needs_no_network():
    assert read(manifest(node(0, ips=())))[0].address is None


def test_a_hostile_manifest_is_refused(tmp_path):
    path = tmp_path / "m.xml"
    path.write_text(manifest(node(0)).replace("ms0.site.us", "-oProxyCommand=id"))
    with pytest.raises(UsageError, match="no login that could be used"):
        hosts.read(str(path), 1)
