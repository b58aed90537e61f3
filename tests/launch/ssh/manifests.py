"""CloudLab's manifests, made of their parts, and what they are read as."""

import pytest

from launch.ssh.cloudlab import read_manifest
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
