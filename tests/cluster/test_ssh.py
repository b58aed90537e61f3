"""Bare metal: unreachable nodes are reported one by one, and what the user types stays text."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import SHORT
from tests.commands import cause_in, ended
from tests.launch.submit import only_run, unnamed, wait_until
from tests.train.workers import free_port, losses, records

pytestmark = pytest.mark.usefixtures("forked_workers")


def ssh(cluster, hosts, *flags, config: Path | None = None) -> tuple[int, str, str]:
    config = config or cluster.ssh_config
    argv = [ways.SSH, str(hosts), "--ssh-config", str(config), *SHORT, *flags]
    return ways.call(cluster, argv)


def known_keys(cluster) -> list[str]:
    path = re.search(r"UserKnownHostsFile (\S+)", cluster.ssh_config.read_text())[1]
    return Path(path).read_text().splitlines()


def key_of(cluster, address: str) -> str:
    (line,) = (one for one in known_keys(cluster) if address in re.split("[ ,]", one))
    return line.partition(" ")[2]


def knows(cluster, folder: Path, *lines: str) -> Path:
    """Return the testbed's ssh configuration, with these lines as its known host keys."""
    known, config = folder / "known_hosts", folder / "ssh_config"
    if lines:
        known.write_text("\n".join([*lines, ""]))
    text = cluster.ssh_config.read_text()
    config.write_text(re.sub(r"(UserKnownHostsFile) .*", rf"\1 {known}", text))
    return config


def test_every_unreachable_node_is_reported_at_once_and_nothing_starts(cluster, tmp_path):
    others = [line for line in known_keys(cluster) if "node3" not in line]
    # node3's name with another node's key
    impostor = f"node3,10.10.1.4 {key_of(cluster, '10.10.1.2')}"
    config = knows(cluster, tmp_path, *others, impostor)
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(
        "node0\nnode3\nno-such-host.invalid\nroot@10.10.1.77\nnode1:2222\nnobody@node2\n"
    )
    code, out, err = ssh(cluster, hosts, "--logs-dir", str(tmp_path), config=config)
    lines = [line for line in err.splitlines() if not line.startswith("tip: ")]
    assert code == 2 and out == "" and len(lines) == 5, err
    assert all(line.startswith("error: ") for line in lines)
    assert "node3: its host key has changed" in lines[0]
    assert "no-such-host.invalid: host name not found" in lines[1]
    assert "10.10.1.77: no" in lines[2]
    assert "node1:2222: connection refused" in lines[3]
    assert "node2: permission denied" in lines[4]
    assert list(tmp_path.glob("*/config.yaml")) == []


def test_an_unknown_host_key_is_refused_with_what_to_do(cluster, tmp_path):
    config = knows(cluster, tmp_path)
    config.write_text(config.read_text().replace("StrictHostKeyChecking yes", ""))
    code, _, err = ssh(cluster, "node0", config=config)
    assert code == 2
    assert err.startswith("error: node0: unknown host key\n")
    assert not (tmp_path / "known_hosts").exists()


def test_text_stays_text_on_the_way_to_another_machine(cluster, tmp_path):
    wild = "a b'c\"$(touch pwned)`id`;&\\*"
    flags = ["--sync", "single", "--task", "rte", "--logs-dir", str(tmp_path)]
    code, _, err = ssh(cluster, "node0", *flags, "--model", wild)
    assert code == 2 and wild in err, err
    found = cluster.exec("node0", "bash", "-c", "ls ~ . /root | grep pwned")
    assert found.stdout == ""


@pytest.mark.slow
def test_gradients_take_the_experiment_network_only(other_cluster, tmp_path):
    """Host names resolve on the control network, as on CloudLab."""
    cluster = other_cluster("--nodes", "4", "--control-network")

    def sent() -> dict[str, int]:
        """Return the bytes sent so far, by node and interface."""
        counters = [f"/sys/class/net/{one}/statistics/tx_bytes" for one in ("exp0", "ctl0")]
        shown = {node: cluster.exec(node, "cat", *counters).stdout for node in cluster.hosts}
        return {
            (node, name): int(count)
            for node, text in shown.items()
            for name, count in zip(("exp0", "ctl0"), text.split(), strict=True)
        }

    before = sent()
    flags = ["--batch-size", "8", "--max-steps", "100", "--logs-dir", str(tmp_path)]
    code, out, err = ssh(cluster, ",".join(cluster.hosts), *flags)
    assert code == 0, err
    assert "network: node0 10.10.1.1 (exp0), node1 10.10.1.2 (exp0)" in out
    steps = [one for one in records(only_run(tmp_path), 0) if one["kind"] == "step"]
    payload = sum(one["payload_bytes"] for one in steps)
    more = {place: count - before[place] for place, count in sent().items()}
    for node in cluster.hosts:
        # a ring sends 2 (N-1)/N times the payload; logins and records are the rest
        assert 1.4 * payload < more[node, "exp0"] < 2.5 * payload, (more, payload)
        assert more[node, "ctl0"] < 0.2 * more[node, "exp0"], more


@pytest.mark.slow
def test_nodes_that_share_no_file_system(apart, tmp_path):
    """The code is sent there, what they write comes back, and a failure there is reported here."""

    def run(name: str, *flags: str) -> tuple[int, str, str]:
        where = ["--logs-dir", str(tmp_path), "--run-id", name]
        return ways.call(apart, ways.ssh(apart, 2, *SHORT, *where, *flags))

    code, out, err = run("first", "--profile", "--log-with", "tensorboard")
    assert code == 0, err
    run_dir = tmp_path / "first"
    assert len(losses(run_dir)) == 4 and "node0.0| step 4" in out
    names = "agents environment metrics model profile tensorboard traffic workers".split()
    assert set(names) <= {path.name for path in run_dir.iterdir()}
    assert list(run_dir.glob("*/rank_00001.*")) and list(run_dir.glob("*/node1.*"))
    assert unnamed(run_dir) == []
    # nothing of the first run is left, here or there, and no other run's files are used
    code, _, err = run("first", "--overwrite")
    assert code == 0, err
    assert len(losses(run_dir)) == 4
    assert not (run_dir / "profile").exists() and not (run_dir / "tensorboard").exists()
    shutil.rmtree(run_dir)
    code, _, err = run("first")
    # whichever node refuses first ends the other
    assert code == 2 and re.search(
        r"node[01]: run folder logs/first is not empty(; |\ntip: )use --over", err
    )
    code, _, err = run("wrong", "--task", "rte", "--model", "/nowhere")
    assert code != 0 and "/nowhere" in cause_in(err)


@pytest.mark.slow
def test_four_containers_on_one_machine(cluster, tmp_path):
    """As in the second course: one host name, a port for each, and other addresses inside."""
    ports = {free_port(): f"10.10.1.{index + 1}" for index in range(4)}
    keys = [f"[127.0.0.1]:{port} {key_of(cluster, node)}" for port, node in ports.items()]
    known, config = tmp_path / "known_hosts", tmp_path / "ssh_config"
    known.write_text("\n".join([*keys, ""]))
    (identity,) = set(re.findall(r"IdentityFile (\S+)", cluster.ssh_config.read_text()))
    config.write_text(f"Host 127.0.0.1\n  IdentityFile {identity}\n  UserKnownHostsFile {known}\n")
    forward = [word for port, node in ports.items() for word in ("-L", f"{port}:{node}:22")]
    argv = ["ssh", "-F", str(cluster.ssh_config), "-N", *forward, "node0"]
    hosts = f"root@127.0.0.1:[{','.join(map(str, ports))}]"
    with ended(subprocess.Popen(argv, text=True)):
        listening = ["ss", "--listening", "--tcp", "--numeric", "--no-header"]
        wait_until(
            lambda: all(f"127.0.0.1:{port} " in cluster.run(*listening).stdout for port in ports)
        )
        code, out, err = ssh(cluster, hosts, "--logs-dir", str(tmp_path), config=config)
    assert code == 0, err
    assert "network: node0 10.10.1.1 (exp0), node1 10.10.1.2 (exp0)" in out
