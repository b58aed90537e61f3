"""--levels 2 beside --levels 1, in turns: bytes on each node's link, and seconds of a sync.

    python -m tests.benchmarks.node_levels [--rates 100mbit,1gbit] [--nodes 4] [--workers 4]

On the testbed (as root). All workers synchronise the gradients of a BERT of 4 layers and width 256
(44.7 MB), without a backward pass to hide behind and without sparse rows. Seconds are those of the
slowest rank; bytes are the interface's own, of one step, headers included.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

from configs.plugins import REPOSITORY
from launch.virtual_cluster import lifecycle
from tests.benchmarks import places
from tests.benchmarks.places import INTERFACE
from tests.benchmarks.results import Spread, aligned
from tests.cluster.testbeds import TESTBED
from train.sync.base import SyncOptions
from train.sync.modes.all_reduce import AllReduce
from train.sync.ranks import Ranks

PORT, TIMEOUT_S = 29_555, 900.0
LAYERS, WIDTH, VOCABULARY, POSITIONS = 4, 256, 30_522, 512
MOST_BYTES_OFF = 0.02
MOST_SECONDS = {"100mbit": 0.85, "1gbit": 1.03}
LEVELS = (1, 2)
Round = dict[str, Any]  # levels, seconds, and the bytes that each node sent and received


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rates", default="100mbit,1gbit")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4, help="of each node")
    parser.add_argument("--rounds", type=int, default=5, help="of both, in turns")
    parser.add_argument("--node", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--master", help=argparse.SUPPRESS)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.node is not None:
        return _node(args)
    head = ["", "rate", "wanted", "reached", ""]
    print(aligned([head, *rows(args.rates.split(","), args.nodes, args.workers, args.rounds)]))
    return 0


def rows(
    rates: Sequence[str] = tuple(MOST_SECONDS), nodes: int = 4, workers: int = 4, rounds: int = 5
) -> list[list[str]]:
    """Those of the table, at one rate after the other."""
    found = [(rate, measured(rate, nodes, workers, rounds)) for rate in rates]
    return [row for rate, one in found for row in table(rate, one, nodes)]


def measured(rate: str, nodes: int, workers: int, rounds: int) -> list[Round]:
    """A testbed of that rate, and what its workers measure there."""
    with places.place(rate, nodes, 1):
        return on_testbed(nodes, workers, rounds)


def on_testbed(nodes: int, workers: int, rounds: int) -> list[Round]:
    """What the workers of the testbed that is up measure."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "rounds.json")
        _, found = lifecycle.present()
        words = [f"--master={found[0].address}", f"--output={output}", f"--nodes={nodes}"]
        words += [f"--workers={workers}", f"--rounds={rounds}"]
        command = [sys.executable, "-m", "tests.benchmarks.node_levels", *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": INTERFACE}
        started = [
            subprocess.Popen(
                [sys.executable, TESTBED, "exec", one.name, "--", *command, f"--node={number}"],
                cwd=REPOSITORY,
                env=env,
            )
            for number, one in enumerate(found)
        ]
        try:
            codes = [one.wait(TIMEOUT_S) for one in started]
        finally:
            for one in started:
                if one.poll() is None:
                    one.terminate()
                    one.wait()
        if any(codes):
            sys.exit(f"{' '.join(command)}: exit codes {codes}")
        told: list[Round] = json.loads(output.read_text())
        return told


def table(rate: str, rounds: Sequence[Round], nodes: int) -> list[list[str]]:
    """Seconds of both and their ratio, and the bytes of the link that is furthest off."""
    of_levels = {levels: [one for one in rounds if one["levels"] == levels] for levels in LEVELS}
    seconds = {levels: [one["s"] for one in found] for levels, found in of_levels.items()}
    made = [
        [f"seconds of a sync, --levels {levels}", rate, "", Spread.of(found).text(3), ""]
        for levels, found in seconds.items()
    ]
    pairs = zip(seconds[2], seconds[1], strict=True)
    ratio, most = Spread.of([two / one for two, one in pairs]), MOST_SECONDS.get(rate)
    limit, verdict = ("", "") if most is None else (f"<= {most:.2f} x", _said(ratio.mean <= most))
    made.append(["seconds of two levels, of those of one", rate, limit, ratio.text(3), verdict])
    wanted = 2 * (nodes - 1) / nodes * _gradient_bytes()
    for levels, found in of_levels.items():
        shares = [size / wanted for one in found for size in one["bytes"]]
        furthest = max(shares, key=lambda share: abs(share - 1))
        what = f"bytes on a node's link, of 2 (nodes-1)/nodes S, --levels {levels}"
        limit, verdict = f"1 ± {MOST_BYTES_OFF}", _said(abs(furthest - 1) <= MOST_BYTES_OFF)
        made.append([what, rate, *([limit, f"{furthest:.4f}", verdict] if levels == 2 else
                                   ["", f"{furthest:.4f}", ""])])  # fmt: skip
    return made


def _said(met: bool) -> str:
    return "met" if met else "missed"


def _node(args: argparse.Namespace) -> int:
    """The workers of one node: torch is imported once, before there are several."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_work, args=(args, args.node * args.workers + at))
        for at in range(args.workers)
    ]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    return max(abs(one.exitcode or 0) for one in processes)


def _work(args: argparse.Namespace, rank: int) -> None:
    torch.set_num_threads(1)
    address, world_size = f"tcp://{args.master}:{PORT}", args.nodes * args.workers
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    ranks, leads = Ranks(rank, world_size), rank % args.workers == 0
    way = {levels: Way(ranks, levels) for levels in LEVELS}
    found: list[Round] = []
    for number in range(args.rounds + 1):
        for levels in LEVELS:
            ranks.barrier(torch.device("cpu"))
            before = _counters()
            began = time.perf_counter()
            way[levels].sync()
            seconds = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
            ranks.barrier(torch.device("cpu"))
            moved = [now - then for now, then in zip(_counters(), before, strict=True)]
            told = torch.tensor([seconds.item(), *(moved if leads else ())], dtype=torch.float64)
            row = torch.zeros(3, dtype=torch.float64)
            row[: len(told)] = told
            rows = ranks.all_gather(row)
            sizes = rows[:: args.workers, 1:].flatten().tolist()
            if number:  # the first learns how the buckets are
                found.append({"levels": levels, "s": rows[:, 0].max().item(), "bytes": sizes})
    if rank == 0:
        args.output.write_text(json.dumps(found))
    ranks.barrier(torch.device("cpu"))
    dist.destroy_process_group()


class Way:
    """One way to synchronise a model of its own."""

    def __init__(self, ranks: Ranks, levels: int) -> None:
        self._model = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in _shapes())
        self._sync = AllReduce(ranks, SyncOptions(levels=levels, sparse_rows=False))
        self._sync.wrap(self._model)
        self._gradients = [torch.ones_like(param) for param in self._model]

    def sync(self) -> None:
        for param, gradient in zip(self._model, self._gradients, strict=True):
            param.grad = gradient
        self._sync.sync(self._model)


def _shapes() -> Iterator[tuple[int, ...]]:
    """In the order of a model: its last gradients are ready first."""
    yield from ((VOCABULARY, WIDTH), (POSITIONS, WIDTH))
    for _ in range(LAYERS):
        for rows, columns in (*[(WIDTH, WIDTH)] * 4, (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH)):
            yield from ((rows, columns), (rows,))


def _gradient_bytes() -> int:
    return sum(4 * torch.Size(shape).numel() for shape in _shapes())


def _counters() -> tuple[int, int]:
    """Bytes that the node's link has sent and received so far."""
    found = psutil.net_io_counters(pernic=True, nowrap=False)[INTERFACE]
    return found.bytes_sent, found.bytes_recv


if __name__ == "__main__":
    sys.exit(main())
