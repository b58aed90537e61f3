"""Seconds for a folder to four nodes: `--send` beside one rsync for each node, all at a time.

    tests/cluster/boxed.sh python -m tests.benchmarks.send [--megabytes 1000] [--files 1000]

Both go through the sshd of a testbed's nodes, whose homes are in memory. They take turns, and each
node's copy is removed in between. Each also sends once more what is there already.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from configs.settings.launch import ONE_WORKER, Sending
from configs.settings.remote import SshConfig
from launch.spec import NodeFacts, NodeSpec
from launch.ssh import transfer
from muster.errors import MusterError
from tests.benchmarks.results import held
from tests.cluster.testbeds import Cluster, bring_up, take_down
from train.report.pages.page import markdown_table

NODES = 4
MOST = 1.1
PLACE = "sent-by-benchmark"  # below each node's home


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rate", help="of each node's link, such as 1gbit (default: no limit)")
    args = parser.parse_args()
    rate = ["--rate", args.rate] if args.rate else []
    cluster = bring_up(
        "--nodes", str(NODES), "--private-home", *rate, env={"MUSTER_BED_VENV": sys.prefix}
    )
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = made(Path(name, "data"), args.megabytes * 1_000_000, args.files)
            rows = measured(cluster, folder, args.rounds)
    finally:
        take_down()
    print(markdown_table(rows))
    return 0


def made(folder: Path, size_bytes: int, files: int) -> Path:
    """A folder with files that cannot be compressed."""
    for number in range(files):
        path = folder / f"{number % 10}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size_bytes // files))
    return folder


def measured(cluster: Cluster, folder: Path, rounds: int) -> list[dict[str, str]]:
    ways: dict[str, Callable[[Cluster, Path], None]] = {"rsync": by_rsync, "--send": by_send}
    seconds: dict[str, list[float]] = {
        f"{way}{time}": [] for way in ways for time in ("", " again")
    }
    for _ in range(rounds):
        for way, send in ways.items():
            for again in ("", " again"):
                began = time.perf_counter()
                send(cluster, folder)
                seconds[f"{way}{again}"].append(time.perf_counter() - began)
            for node in cluster.hosts:
                cluster.ssh(node, "rm", "-rf", PLACE)
    ratio = median(seconds["--send"]) / median(seconds["rsync"])
    ratios = [own / other for own, other in zip(seconds["--send"], seconds["rsync"], strict=True)]
    return [
        *({"what": name, "median, s": f"{median(each):.2f}"} for name, each in seconds.items()),
        {**held("--send / rsync", ratios, MOST), "median, s": f"{ratio:.2f} x"},
    ]


def by_send(cluster: Cluster, folder: Path) -> None:
    nodes = [
        NodeFacts(NodeSpec(host, ONE_WORKER), host, "python3", "muster", ONE_WORKER)
        for host in cluster.hosts
    ]
    config = SshConfig(ssh_config=cluster.ssh_config)
    transfer.send_data(Sending(str(folder), f"~/{PLACE}"), nodes, config, quiet=True)


def by_rsync(cluster: Cluster, folder: Path) -> None:
    """As one types it in a loop over the nodes.

    Raises:
        MusterError: a copy failed.
    """
    shell = shlex.join(["ssh", "-F", str(cluster.ssh_config)])
    copies = [
        subprocess.Popen(["rsync", "-a", "-e", shell, f"{folder}/", f"{host}:{PLACE}/"])
        for host in cluster.hosts
    ]
    codes = [copy.wait() for copy in copies]
    if any(codes):
        raise MusterError("rsync failed")


if __name__ == "__main__":
    sys.exit(main())
