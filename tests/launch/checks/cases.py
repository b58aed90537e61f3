"""A healthy cluster, made up, of which each test spoils one thing."""

from launch.checks.findings import Findings, Node, Reach
from launch.nodes.network_choice import Choice

VERSIONS = {"python": "3.11.7", "torch": "2.13.0", "transformers": "5.23.0", "psutil": "7.0"}
NET = "10.10.1.0/24"
DISK = {"folder": "/logs", "exists": True, "free_bytes": 50e9}


def probe(index, **spoilt):
    interface = {"name": "e0", "address": f"10.10.1.{index + 1}", "netmask": "255.255.255.0"}
    healthy = {
        "host": f"node{index}",
        "shared": True,
        "folder": "/home/me/muster",
        "python": "/home/me/muster/.venv/bin/python",
        "versions": VERSIONS,
        "foreign": [],
        "interfaces": [interface],
        "came_by": [],
        "disks": {"run folder": DISK, "data": {**DISK, "folder": "/data"}, "checkout": DISK},
        "gpus": [],
    }
    assert spoilt.keys() <= healthy.keys()
    return {**healthy, **spoilt}


def findings(count=4, launcher="ssh", nodes=None, unreached=None, skews=None, **spoilt):
    """`nodes` spoils probes by index, `unreached` says which ways fail and how."""
    names = [f"node{index}" for index in range(count)]
    made = [
        Node(
            name=name,
            probe=probe(index, **(nodes or {}).get(index, {})),
            address=f"10.10.1.{index + 1}",
            skew_s=(skews or {}).get(index, 0.0001),
            reached={
                other: Reach((unreached or {}).get((name, other), ""), 0.001)
                for other in names
                if other != name
            },
        )
        for index, name in enumerate(names)
    ]
    chosen = Choice(NET, tuple(f"10.10.1.{index + 1}" for index in range(count)))
    return Findings(**{"launcher": launcher, "nodes": made, "chosen": chosen, **spoilt})
