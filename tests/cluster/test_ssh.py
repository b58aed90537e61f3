"""Bare metal: what cannot be reached is said, node by node; what is typed stays text."""

import json
import os
import re
import shutil
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import finish, start
from tests.launch.submit import unnamed
from tests.train.workers import losses

pytestmark = pytest.mark.usefixtures("warm_workers")

FLAGS = ["--task", "synthetic", "--max-steps", "4", "--evaluate", "never", "--threads", "1"]


def ssh(cluster, hosts, *flags) -> tuple[int, str, str]:
    argv = [ways.SSH, str(hosts), "--ssh-config", str(cluster.ssh_config), *FLAGS, *flags]
    return finish(start(cluster, argv))


def known_keys(cluster) -> list[str]:
    path = re.search(r"UserKnownHostsFile (\S+)", cluster.ssh_config.read_text())[1]
    return Path(path).read_text().splitlines()


def test_every_unreachable_node_is_reported_at_once_and_nothing_starts(cluster, tmp_path):
    config = tmp_path / "ssh_config"
    stranger = tmp_path / "known_hosts"
    known = known_keys(cluster)
    first = next(line for line in known if "10.10.1.2" in line or "node1" in line)
    other = next(line for line in known if line.split()[-1] != first.split()[-1])
    # node3's name with another node's key
    stranger.write_text(
        "\n".join(line for line in known if "node3" not in line and "10.10.1.4" not in line)
        + f"\nnode3,10.10.1.4 {' '.join(other.split()[1:])}\n"
    )
    text = cluster.ssh_config.read_text()
    config.write_text(re.sub(r"(UserKnownHostsFile) .*", rf"\1 {stranger}", text))
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("node0\nnode3\nno-such-host.invalid\nroot@10.10.1.77\nnode1:2222\n")
    began = time.monotonic()
    argv = [ways.SSH, str(hosts), "--ssh-config", str(config), *FLAGS, "--logs-dir", str(tmp_path)]
    code, out, err = finish(start(cluster, argv))
    print(f"said after {time.monotonic() - began:.1f} s")
    lines = err.splitlines()
    assert code == 2 and out == "" and len(lines) == 4, err
    assert all(line.startswith("error: ") for line in lines)
    assert "node3: its host key is not" in lines[0]
    assert "no-such-host.invalid: its name does not resolve" in lines[1]
    assert "10.10.1.77: no" in lines[2]
    assert "node1:2222: nothing listens for ssh there" in lines[3]
    assert list(tmp_path.glob("*/config.yaml")) == []


def test_an_unknown_host_key_is_refused_with_what_to_do(cluster, tmp_path):
    config = tmp_path / "ssh_config"
    text = cluster.ssh_config.read_text()
    config.write_text(re.sub(r"(UserKnownHostsFile) .*", rf"\1 {tmp_path / 'none'}", text))
    config.write_text(config.read_text().replace("StrictHostKeyChecking yes", ""))
    argv = [ways.SSH, "node0", "--ssh-config", str(config), *FLAGS]
    code, _, err = finish(start(cluster, argv))
    assert code == 2
    assert err.startswith("error: node0: its host key is not known; compare its fingerprint")
    assert not (tmp_path / "none").exists()


def test_text_stays_text_on_the_way_to_another_machine(cluster, tmp_path):
    wild = "a b'c\"$(touch pwned)`id`;&\\*"
    code, _, err = ssh(cluster, "node0", "--sync", "single", "--task", "rte", "--model", wild)
    assert code == 2 and wild in err, err
    (tmp_path / "hosts.txt").write_text(
        "node0;touch${IFS}pwned\n-oProxyCommand=id\nnode0 slots=$(id)\n"
    )
    code, out, err = ssh(cluster, tmp_path / "hosts.txt")
    assert code == 2 and out == "" and len(err.splitlines()) == 3
    found = cluster.exec("node0", "bash", "-c", "ls ~ . /root | grep pwned")
    assert found.stdout == ""


def test_gradients_take_the_experiment_network_only(other_cluster, tmp_path):
    """Host names resolve on the control network, as on CloudLab."""
    cluster = other_cluster("--nodes", "4", "--control-network")

    def sent(node: str, interface: str) -> int:
        message = cluster.exec(node, "cat", f"/sys/class/net/{interface}/statistics/tx_bytes")
        return int(message.stdout)

    before = {node: (sent(node, "exp0"), sent(node, "ctl0")) for node in cluster.hosts}
    flags = ["--batch-size", "8", "--max-steps", "100", "--logs-dir", str(tmp_path)]
    code, out, err = ssh(cluster, ",".join(cluster.hosts), *flags)
    assert code == 0, err
    assert "network: node0 10.10.1.1 (exp0), node1 10.10.1.2 (exp0)" in out
    (run_dir,) = (path.parent for path in tmp_path.glob("*/config.yaml"))
    lines = (run_dir / "metrics" / "rank_00000.jsonl").read_text().splitlines()
    steps = [one for one in map(json.loads, lines) if one["kind"] == "step"]
    payload = sum(one["payload_bytes"] for one in steps)
    for node in cluster.hosts:
        gradients = sent(node, "exp0") - before[node][0]
        control = sent(node, "ctl0") - before[node][1]
        # a ring sends 2 (N-1)/N times the payload; logging in and records are all the rest
        assert 1.4 * payload < gradients < 2.5 * payload, (node, gradients, payload)
        assert control < 0.2 * gradients, (node, control, gradients)


def test_nodes_that_share_no_file_system(other_cluster, tmp_path):
    """The code is sent there, and what they write comes back; a failure there is told here."""
    venv = os.environ.get("MUSTER_BED_VENV", str(Path(sys.prefix)))
    cluster = other_cluster("--nodes", "2", "--private-home", env={"MUSTER_BED_VENV": venv})
    python = ways.PYTHON.copy()
    ways.PYTHON.clear()  # the nodes' own environment, at ~/muster/.venv
    try:
        argv = [sys.executable, ways.SUBMIT, "--launcher", "ssh", "--hosts", "node0,node1"]
        argv += ["--ssh-config", str(cluster.ssh_config), *FLAGS, "--logs-dir", str(tmp_path)]
        more = ["--profile", "--tensorboard", "--run-id", "first"]
        code, out, err = finish(start(cluster, [*argv, *more]))
        assert code == 0, err
        run_dir = tmp_path / "first"
        assert len(losses(run_dir)) == 4 and "node0.0| step 4" in out
        for name in (
            "summary.json",
            "workers/rank_00001.err",
            "metrics/rank_00001.jsonl",
            "environment/node1.json",
            "agents/node_00001.exit.json",
            "model/model.safetensors",
            "profile/rank_00001.json",
            "traffic/node1.csv",
        ):
            assert (run_dir / name).exists(), name
        assert list((run_dir / "tensorboard").iterdir())
        assert unnamed(run_dir) == []
        # nothing of the first run is left, here or there, and nothing of another is taken
        code, out, err = finish(start(cluster, [*argv, "--run-id", "first", "--overwrite"]))
        assert code == 0, err
        assert len(losses(run_dir)) == 4
        assert not (run_dir / "profile").exists() and not (run_dir / "tensorboard").exists()
        shutil.rmtree(run_dir)
        code, _, err = finish(start(cluster, [*argv, "--run-id", "first"]))
        assert code == 2 and "node0: run folder logs/first is not empty; use --overwrite" in err
        again = [*argv, "--run-id", "wrong", "--task", "rte", "--model", "/nowhere"]
        code, _, err = finish(start(cluster, again))
        assert code != 0 and "/nowhere" in err.splitlines()[-1]
    finally:
        ways.PYTHON.update(python)


def test_four_containers_on_one_machine(cluster, tmp_path):
    """As the second course has them: one host name, a port each, other addresses inside."""
    servers = [forward(f"10.10.1.{index + 1}") for index in range(4)]
    ports = [server.getsockname()[1] for server in servers]
    keys = known_keys(cluster)
    known = tmp_path / "known_hosts"
    lines = []
    for index, port in enumerate(ports):
        key = next(line for line in keys if f"10.10.1.{index + 1}" in re.split(r"[ ,]", line))
        lines.append(f"[127.0.0.1]:{port} {' '.join(key.split()[1:])}\n")
    known.write_text("".join(lines))
    identity = re.search(r"IdentityFile (\S+)", cluster.ssh_config.read_text())[1]
    config = tmp_path / "ssh_config"
    config.write_text(f"Host 127.0.0.1\n  IdentityFile {identity}\n  UserKnownHostsFile {known}\n")
    hosts = f"root@127.0.0.1:[{','.join(map(str, ports))}]"
    argv = [ways.SSH, hosts, "--ssh-config", str(config), *FLAGS, "--logs-dir", str(tmp_path)]
    code, out, err = finish(start(cluster, argv))
    for server in servers:
        server.close()
    assert code == 0, err
    assert "network: node0 10.10.1.1 (exp0), node1 10.10.1.2 (exp0)" in out


def forward(address: str) -> socket.socket:
    """A port of this machine that leads to a node's sshd."""
    server = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def serve() -> None:
        while True:
            try:
                client, _ = server.accept()
            except OSError:
                return
            node = socket.create_connection((address, 22))
            for ends in ((client, node), (node, client)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return server
