"""Which rank failed first, and why: the cause alone, not the echoes of its neighbours."""

import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OWN_CAUSES = ("refused", "crash")  # the others are echoes: a lost peer, a signal of the agent
KILLED = 128 + 9
LOG_LINES = 25  # a whole traceback, usually
# torchrun logs notes of its own, and after a worker has failed a long report that hides why.
TORCHRUN_NOTE = re.compile(r"[IW]\d{4} [\d:.]+ \d+ .*\btorch/distributed/")
TORCHRUN_REPORT = re.compile(r"E\d{4} [\d:.]+ \d+ .*\btorch/distributed/elastic/")


@dataclass(frozen=True)
class Failure:
    """The exit code of a failed run, and what to print about it."""

    code: int
    text: str  # the cause, in the words it was given: what one should see last
    context: tuple[str, ...] = ()  # lines to go before it


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
    killed = {rank: path for rank in silent if (path := _output(run_dir, rank)).exists()}
    if own:
        return _own_failure(min(own, key=lambda record: record["time_unix_s"]), world_size)
    if killed:
        return _killed(killed, sorted(exits))
    if silent:
        return _never_started(run_dir, silent)
    first = min(exits.values(), key=lambda record: record["time_unix_s"])
    return Failure(first["code"] or 1, _lines(first["message"]) or "error: a worker failed")


def _output(run_dir: Path, rank: int) -> Path:
    """Where a worker sends its stderr: the first thing it does."""
    return run_dir / "workers" / f"rank_{rank:05d}.err"


def _own_failure(record: Mapping[str, Any], world_size: int) -> Failure:
    if not record["traceback"]:
        return Failure(record["code"], _lines(record["message"]))
    others = " first; the others stopped because of it" if world_size > 1 else ""
    context = f"error: rank {record['rank']} on {record['host']} failed{others}:"
    return Failure(record["code"], record["traceback"].rstrip(), (context,))


def _killed(outputs: Mapping[int, Path], echoes: Sequence[int]) -> Failure:
    files = ", ".join(map(str, outputs.values()))
    return Failure(
        KILLED,
        f"error: {_ranks(outputs)} ended without a word (killed? out of memory?); "
        f"its output: {files}",
        (f"{_ranks(echoes)} stopped because of it",) if echoes else (),
    )


def _never_started(run_dir: Path, silent: Sequence[int]) -> Failure:
    """Workers that failed before they had a file of their own: their agent's log has why."""
    # the agent that was the first to fall silent is the one that was not stopped by us
    logs = sorted(run_dir.glob("agents/node_*.log"), key=lambda log: log.stat().st_mtime_ns)
    texts = {log: log.read_text(encoding="utf-8", errors="replace") for log in logs}
    for words in (_before_report, str.splitlines):
        for log, text in texts.items():
            if lines := words(text.strip()):
                end = "\n".join(lines[-LOG_LINES:])
                context = f"error: {_ranks(silent)} failed before the start; the end of {log}:"
                return Failure(1, end, (context,))
    return Failure(1, f"error: {_ranks(silent)} never started, and torchrun said nothing")


def _before_report(log: str) -> list[str]:
    """What the workers said into their agent's log, without torchrun's own words."""
    lines = itertools.takewhile(lambda line: not TORCHRUN_REPORT.match(line), log.splitlines())
    return [line for line in lines if not TORCHRUN_NOTE.match(line)]


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"


def _lines(message: str) -> str:
    return "\n".join(f"error: {line}" for line in message.splitlines())
