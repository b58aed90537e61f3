"""Each row fails when it should, names the node, and says what to do."""

import sys
from dataclasses import replace
from types import MappingProxyType

import pytest
from msgspec import convert

from launch.checks import network_checks, node_checks
from launch.checks.examination import examination
from launch.checks.findings import CheckedNode, Findings, PairConnection, lines
from launch.nodes.answers import Probe
from launch.nodes.network_choice import Choice
from launch.nodes.node_facts import AGENT_PACKAGES
from launch.nodes.resources import Cores, SharedMemory
from launch.spec import WorkersPython

PACKAGES = {**dict.fromkeys(AGENT_PACKAGES, "7.0"), "torch": "2.13.0", "transformers": "5.23.0"}


def versions(*plugins, **packages):
    return {"python": "3.11.7", "packages": {**PACKAGES, **packages}, "plugins": [*plugins]}


NET = "10.10.1.0/24"
ENOUGH = SharedMemory(8 << 30, 8 << 30)
DISK = {"folder": "/logs", "exists": True, "free_bytes": 50_000_000_000}
FOUR_CORES = Cores([[0], [1], [2], [3]], None)


EMPTY = MappingProxyType({})


def probe(index, **spoilt):
    interface = {"name": "e0", "address": f"10.10.1.{index + 1}", "netmask": "255.255.255.0"}
    disks = {"run folder": DISK, "data": {**DISK, "folder": "/data"}, "checkout": DISK}
    python = "/home/me/muster/.venv/bin/python"
    healthy = {"host": f"node{index}", "folder": "/home/me/muster", "python": python}
    healthy |= {"shared": True, "versions": versions(), "foreign": [], "disks": disks, "gpus": []}
    healthy |= {"interfaces": [interface], "came_by": [], "towards_origin": None, "workers": None}
    healthy |= {"has_rsync": True}
    return convert({**healthy, **spoilt}, Probe)


def findings(
    count=4, launcher="ssh", nodes=EMPTY, unreached=EMPTY, skews=EMPTY, cores=EMPTY, planned=2,
    **spoilt,
):  # fmt: skip
    """Make findings: `nodes` spoils probes by index, `unreached` gives pairs that fail, and why."""
    addresses = {f"node{index}": f"10.10.1.{index + 1}" for index in range(count)}
    made = []
    for index, (name, address) in enumerate(addresses.items()):
        spoilt_here = dict(nodes.get(index, {}))
        shared = spoilt_here.pop("shared_memory", ENOUGH)
        found, skew_s = probe(index, **spoilt_here), skews.get(index, 0.0001)
        ways = {
            other: PairConnection(unreached.get((name, other), ""), 0.001) for other in addresses
        }
        del ways[name]
        own = cores.get(index, FOUR_CORES)
        made.append(CheckedNode(name, found, address, skew_s, ways, shared, own, planned))
    chosen = Choice(NET, tuple(addresses.values()))
    return Findings(**{"launcher": launcher, "nodes": made, "chosen": chosen, **spoilt})


@pytest.mark.parametrize("launcher", ["ssh", "slurm", "local"])
def test_a_healthy_cluster_is_all_ok(launcher):
    found = examination(findings(launcher=launcher))
    assert [row.line for row in found if row.verdict != "ok"] == []
    assert len(found) == 10 and lines(found, "FAIL") == lines(found, "warn") == []


FOREIGN = {"shared": False, "foreign": ["data", "train"]}
SMALL = SharedMemory(64 << 20, 60_000_000)
OF_TWO = ENOUGH._replace(free_bytes=300 << 20)
FULL = {"run folder": {**DISK, "free_bytes": 3_000_000_000}}
NO_DATA = {"checkout": DISK, "data": {**DISK, "exists": False}}


SPOILT = [
    ("python", "FAIL", {"versions": None}, "node1: no environment at /home"),
    ("python", "FAIL", {"versions": versions(torch=None)}, "has no torch"),
    ("python", "FAIL", {"versions": versions(torch="2.1")}, "node1: python 3.11.7, torch 2.1"),
    ("python", "warn", {"versions": versions("muster.tasks:rte")}, "adds rte to"),
    ("code", "FAIL", FOREIGN, "node1: /home/me/muster contains data, train, "),
    ("GPUs", "warn", {"gpus": ["A100, 550"] * 2}, "node1: 2 x A100, driver 550"),
    ("/dev/shm", "warn", {"shared_memory": SMALL}, "node1: /dev/shm has 60 of 67 MB free"),
    ("/dev/shm", "warn", {"shared_memory": OF_TWO}, "node1: /dev/shm has 315 of 8590 MB free"),
    ("free disk", "warn", {"disks": FULL}, "node1: run folder: 3.0 GB"),
    ("free disk", "warn", {"disks": NO_DATA}, "node1: data: /logs does not exist"),
]


@pytest.mark.parametrize(("check", "verdict", "spoilt", "words"), SPOILT)
def test_broken_node_fails_its_row_by_name(check, verdict, spoilt, words):
    rows = examination(findings(nodes={1: spoilt}))
    (row,) = [row for row in rows if row.verdict != "ok"]
    assert (row.check, row.verdict) == (check, verdict)
    assert words in "\n".join(row.found) and "node" in row.line and row.fix


def test_cores_of_each_worker_are_in_the_row_once_known():
    assert node_checks.cores(findings()).found == ("2 for each worker",)
    assert node_checks.cores(findings(planned=0)).verdict == "ok"
    for few in (Cores([[0]], None), FOUR_CORES._replace(limit=1.5)):
        row = node_checks.cores(findings(cores={1: few}))
        assert row.verdict == "warn" and row.found[1].startswith("node1: 2 workers share 1 core")
        assert row.fix
    many = findings(planned=5, launcher="slurm")
    line = node_checks.cores(many).line
    assert line.startswith("cores: 5 workers share 4 cores") and "--cpus-per-task" in line


def test_unshared_files_pass_check_over_ssh_but_fail_on_slurm():
    apart = {index: {"shared": False} for index in range(4)}
    assert node_checks.code(findings(nodes=apart)).verdict == "ok"
    assert "sent before each run" in node_checks.code(findings(nodes=apart)).found[0]
    assert node_checks.code(findings(nodes=apart, launcher="slurm")).verdict == "FAIL"


def test_silent_node_is_named_and_others_are_checked():
    line = "node9: its host key is not known; check its fingerprint"
    found = examination(findings(silent=[line]))
    assert lines(found, "FAIL") == [f"reach: {line}"]
    assert len(found) == 10
    nobody = examination(Findings("ssh", (), ["a: silent; is it up", "b: silent; is it up"]))
    assert [row.verdict for row in nobody] == ["FAIL"]
    assert nobody[0].found == ("a: silent", "b: silent")
    assert nobody[0].fix == "is it up"


def test_no_network_fails_and_others_are_offered():
    without = examination(findings(chosen=None, trouble="no common one: a; b"))
    assert lines(without, "FAIL")[0].startswith("network: no common one: a; b; ")
    other = Choice(NET, tuple(f"10.10.1.{index}" for index in (1, 2, 3, 4)), ("192.168.7.0/24",))
    assert "192.168.7.0/24" in network_checks.network(findings(chosen=other)).fix


def test_a_node_that_nobody_reaches_is_one_line():
    others = ("node0", "node1", "node3")
    to_it = {(one, "node2"): "no answer" for one in others}
    row = network_checks.pairs(findings(unreached=to_it))
    assert row.found == ("no node reaches node2 (10.10.1.3): no answer",)
    both = {("node2", one): "no route" for one in others}
    row = network_checks.pairs(findings(unreached=to_it | both))
    assert row.found[1] == "node2 reaches no other node: no route" and len(row.found) == 2


def test_lost_large_packets_are_distinguished_from_a_firewall():
    row = network_checks.pairs(findings(unreached={("node0", "node1"): "stalls"}))
    assert row.found == ("node0 to node1: stalls",)
    assert "MTU" in row.fix and "firewall" not in row.fix


def test_a_pair_that_was_not_tried_is_no_success():
    silent = findings()
    nodes = [silent.nodes[0], replace(silent.nodes[1], connections={}), *silent.nodes[2:]]
    row = network_checks.pairs(replace(silent, nodes=nodes))
    assert row.verdict == "FAIL" and "node1" in row.found[0]


def test_clocks_that_are_all_off_are_perhaps_this_machines():
    row = network_checks.clocks(findings(3, skews={0: 3600.0, 1: 3600.2, 2: 3600.1}))
    assert row.verdict == "warn" and row.fix.startswith("run here: ")
    assert row.found[1] == "node1: +3600.2 s from this machine's clock" and len(row.found) == 3
    row = network_checks.clocks(findings(3, skews={0: 0.0, 1: -1.5, 2: 0.9}))
    assert row.found == ("node1: -1.5 s from this machine's clock",)
    assert row.fix.startswith("run on these nodes: ")


BARE = versions(torch=None, transformers=None)
THEIRS = versions(torch="2.9.0", transformers=None)
NAMED = WorkersPython(("torch",), "/opt/python")
CHOSEN = WorkersPython(("torch",), is_chosen_here=True)


def row_of_python(asked, **spoilt):
    return node_checks.python(findings(nodes=dict.fromkeys(range(4), spoilt), workers=asked))


def test_a_program_with_its_own_python_needs_no_torch_in_musters():
    row = row_of_python(NAMED, versions=BARE, workers=THEIRS)
    assert (row.verdict, row.found) == ("ok", ("python 3.11.7, torch 2.9.0",))
    assert row_of_python(CHOSEN, versions=BARE).verdict == "ok"
    assert row_of_python(WorkersPython(()), versions=BARE).verdict == "ok"


def test_packages_that_the_workers_python_lacks_are_named_with_it():
    assert "node0: /opt/python has no torch" in row_of_python(NAMED, workers=BARE).found
    assert "node0: no Python at /opt/python" in row_of_python(NAMED, workers=None).found
    assert "--python" in row_of_python(NAMED, workers=None).fix
    apart = row_of_python(CHOSEN, versions=BARE, shared=False)
    assert (apart.verdict, apart.found[0]) == ("FAIL", "node0: has no torch")


def test_a_node_without_musters_environment_gets_one_that_fits_the_run():
    row = row_of_python(NAMED, versions=None, workers=THEIRS)
    assert "muster run --hosts HOSTS --setup --python /opt/python" in row.fix
    assert row_of_python(CHOSEN, versions=None).fix.startswith(
        "create it on all nodes: muster run --hosts HOSTS --setup, or"
    )


def test_packages_that_a_nodes_agent_lacks_are_named_with_setup():
    """An environment that an earlier version created may lack them."""
    lacking = versions(msgspec=None, psutil=None)
    row = node_checks.python(findings(nodes={1: {"versions": lacking}}, workers=NAMED))
    (line,) = row.found
    assert row.verdict == "FAIL"
    assert line == "node1: /home/me/muster/.venv/bin/python has no msgspec, psutil"
    assert row.fix.startswith(
        "create it on all nodes: muster run --hosts HOSTS --setup --python /opt/python"
    )


def test_missing_packages_of_the_trainer_are_named_with_what_installs_them():
    spoilt = {0: {"versions": versions(torch=None), "python": sys.executable}}
    row = node_checks.python(findings(launcher="local", nodes=spoilt))
    assert row.fix.startswith("install: ") and "--python" in row.fix
