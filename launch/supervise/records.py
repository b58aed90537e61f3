"""What each agent leaves in `agents/` of the run folder: who it was, and how its part ended."""

import json
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from launch.supervise.assignment import Assignment
from launch.supervise.processes import Victim


def agent_log(assignment: Assignment) -> Path:
    """What torchrun, or workers before they have files of their own, print."""
    return _folder(assignment) / f"{_name(assignment)}.log"


def write_here(
    assignment: Assignment, address: str, interface: str | None, ranks: Sequence[int]
) -> dict[str, Any]:
    """Write down who this agent is; a process is known by its pid together with its start time."""
    import psutil

    record = {
        "index": assignment.index,
        "node": assignment.name,
        "host": socket.gethostname(),
        "address": address,
        "interface": interface,
        "ranks": list(ranks),
        "pid": os.getpid(),
        "started_unix_s": psutil.Process().create_time(),
    }
    _write(_folder(assignment) / f"{_name(assignment)}.json", record)
    return record


def stopped_cleanly(assignment: Assignment, ranks: Sequence[int]) -> str:
    """What this node's workers said, if all of them stopped in order; else nothing."""
    said = _said(assignment, ranks)
    if not ranks or any(said.get(rank, {}).get("cause") != "stopped" for rank in ranks):
        return ""
    return str(said[ranks[0]]["message"])


def failed(assignment: Assignment, ranks: Sequence[int]) -> list[int]:
    """Which of this node's workers have said that they failed."""
    said = _said(assignment, ranks)
    return [rank for rank, one in said.items() if one.get("cause") not in ("done", "stopped")]


def write_exit(
    assignment: Assignment,
    ranks: Sequence[int],
    *,
    code: int,
    cause: str,
    message: str,
    clock_offset_s: float,
    victims: Sequence[Victim] = (),
) -> dict[str, Any]:
    """Write down how this node's part ended, with what each of its workers said of its own end.

    `ended` has the workers that were alive until this agent ended them, and in which state.
    """
    record = {
        "index": assignment.index,
        "node": assignment.name,
        "host": socket.gethostname(),
        "code": code,
        "cause": cause,
        "message": message,
        "time_unix_s": time.time(),
        "clock_offset_s": clock_offset_s,  # to add, to have node 0's clock
        "ranks": list(ranks),
        "workers": _said(assignment, ranks),
        "ended": {one.rank: asdict(one) for one in victims if one.rank is not None},
        "survivors": [one.pid for one in victims if one.survives],
    }
    _write(_folder(assignment) / f"{_name(assignment)}.exit.json", record)
    return record


def _said(assignment: Assignment, ranks: Sequence[int]) -> dict[int, dict[str, Any]]:
    exits = Path(assignment.run_dir) / "exits"
    paths = {rank: exits / f"rank_{rank:05d}.json" for rank in ranks}
    return {
        rank: json.loads(path.read_text(encoding="utf-8"))
        for rank, path in paths.items()
        if path.exists()
    }


def _folder(assignment: Assignment) -> Path:
    folder = Path(assignment.run_dir) / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _name(assignment: Assignment) -> str:
    return f"node_{assignment.index:05d}"


def _write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all: a reader never sees half a record."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    new.replace(path)
