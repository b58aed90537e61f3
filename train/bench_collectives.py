"""Measure every collective at every size: `... -m train.bench_collectives`.

Each process is one worker of a run. Start it with torchrun or by hand like train.worker, or with
any launcher: `python launch/submit.py --program bench_collectives --nodes 4`. Rank 0 prints a table
in the format of nccl-tests, and writes `collectives.json` into the run folder.
"""

import sys
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from configs import cli
from configs.settings.train import MEASUREMENT_SETTINGS, BenchConfig, ByHand, TrainConfig
from muster.errors import MusterError, UsageError, refuse
from muster.run_files import COLLECTIVES
from muster.writing import write_json
from train.distributed.exit_guard import ExitGuard
from train.distributed.world import World
from train.worker import as_worker, end_process

PROGRAM_NAME = "bench_collectives"
# The columns of nccl-tests: heading, key in a result, width, format.
COLUMNS = (
    ("operation", "name", 15, ""), ("size(B)", "bytes", 11, ""), ("count", "count", 10, ""),
    ("type", "type", 6, ""), ("redop", "redop", 6, ""), ("time(us)", "time_us", 11, ".1f"),
    ("min(us)", "time_us_min", 11, ".1f"), ("algbw(GB/s)", "algbw_gb_s", 12, ".4f"),
    ("busbw(GB/s)", "busbw_gb_s", 12, ".4f"), ("#wrong", "wrong", 7, ""),
)  # fmt: skip
HEADER = "#" + " ".join(f"{name:>{width}}" for name, _, width, _ in COLUMNS)[1:]


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    classes = [BenchConfig, TrainConfig, ByHand]
    parsed = cli.parsed(
        classes,
        argv,
        prog=f"python -m train.{PROGRAM_NAME}",
        description="Time and check collectives, as one of the workers of a run.",
    )
    (bench, config, by_hand), problems = parsed.instances(classes)
    refuse(problems)
    without_use = {item.name for item in fields(TrainConfig)} - MEASUREMENT_SETTINGS
    refuse(
        f"{setting.spelt} is for training, not for this benchmark\ntip: leave it out"
        for setting in parsed.flags
        if setting.name in without_use
    )
    return as_worker(config, by_hand, lambda *raw: _bench(bench, *raw))


def _bench(bench: BenchConfig, config: TrainConfig, world: World, exit_guard: ExitGuard) -> None:
    if world.world_size == 1:
        raise UsageError(
            "a single worker has no other worker to send to\ntip: start two or more: --nodes 2"
        )
    from train.benchmarks import collectives, network
    from train.loop import run
    from train.records.sinks import Console

    with run.join_workers(config, world, exit_guard, what=PROGRAM_NAME) as (peers, run_dir):
        world = peers.world
        network.require_all_ranks(config.timeout_s)
        results: dict[str, Any] = {"run_id": run_dir.name, **network.placement(peers)}
        console = Console(speaks=world.is_main and not config.quiet)
        results["collectives"] = []
        links = _links(results["links"])
        console.line(f"# {world.world_size} workers, {results['backend']}, {links}")
        console.line(HEADER)
        for name in bench.names():
            for size in bench.sizes():
                row = collectives.measure(name, size, peers, collectives.THOROUGH)
                results["collectives"].append(row)
                console.line(line(row))
                if world.is_main:  # after each row, so that an early stop leaves results
                    write_json(COLLECTIVES.path(run_dir), results)
        wrong = sum(row["wrong"] for row in results["collectives"])
        console.line(f"# wrong values: {wrong}; all numbers: {COLLECTIVES.path(run_dir)}")
        if wrong:
            raise MusterError(
                f"{wrong} values arrived corrupted; something between the nodes changes data: "
                "check memory, cables and drivers"
            )


def line(row: dict[str, Any]) -> str:
    """Format one row of the table."""
    return " ".join(f"{row[key]:>{width}{form}}" for _, key, width, form in COLUMNS)


def _links(links: dict[str, dict[str, Any]]) -> str:
    """Describe the interfaces with their packet sizes, each combination once."""
    kinds = {f"{link['interface']} with MTU {link['mtu_bytes']}" for link in links.values()}
    return ", ".join(sorted(kinds))


if __name__ == "__main__":
    cli.run(lambda: end_process(main()))
