"""Which rank failed first, and why: the cause alone, not the echoes of its neighbours."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_CAUSES = ("refused", "crash")  # the others are echoes: a lost peer, a signal of the agent
KILLED = 128 + 9
LOG_LINES = 15


@dataclass(frozen=True)
class Failure:
    """The exit code of a failed run, and what to print about it."""

    code: int
    text: str


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    found = {}
    for path in run_dir.glob("exits/rank_*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        found[int(record["rank"])] = record
    return found


def explain(run_dir: Path, world_size: int) -> Failure | None:
    """Why a run whose processes have all ended failed; None if every rank is done."""
    exits = read_exits(run_dir)
    if len(exits) == world_size and all(one["cause"] == "done" for one in exits.values()):
        return None
    own = [record for record in exits.values() if record["cause"] in OWN_CAUSES]
    silent = sorted(set(range(world_size)) - set(exits))
    if own:
        return _own_failure(min(own, key=lambda record: record["time_unix_s"]), world_size)
    if exits and silent:
        return _killed(run_dir, silent, exits)
    if exits:
        first = min(exits.values(), key=lambda record: record["time_unix_s"])
        return Failure(first["code"] or 1, _lines(first["message"]) or "error: a worker failed")
    return _never_started(run_dir)


def _own_failure(record: Mapping[str, Any], world_size: int) -> Failure:
    if not record["traceback"]:
        return Failure(record["code"], _lines(record["message"]))
    others = "; the others stopped because of it" if world_size > 1 else ""
    header = f"error: rank {record['rank']} on {record['host']} failed first{others}:\n"
    return Failure(record["code"], header + record["traceback"].rstrip())


def _killed(run_dir: Path, silent: list[int], exits: Mapping[int, Any]) -> Failure:
    ranks = ", ".join(map(str, silent))
    files = ", ".join(str(run_dir / "workers" / f"rank_{rank:05d}.err") for rank in silent)
    echoes = ", ".join(map(str, sorted(exits)))
    return Failure(
        KILLED,
        f"rank {echoes} stopped because of it\n"
        f"error: rank {ranks} ended without a word (killed? out of memory?); its output: {files}",
    )


def _never_started(run_dir: Path) -> Failure:
    for log in sorted(run_dir.glob("agents/node_*.log")):
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        if lines:
            end = "\n".join(lines[-LOG_LINES:])
            return Failure(1, f"error: no worker came to its start; the end of {log}:\n{end}")
    return Failure(1, "error: no worker came to its start, and torchrun said nothing")


def _lines(message: str) -> str:
    return "\n".join(f"error: {line}" for line in message.splitlines())
