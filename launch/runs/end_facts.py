"""What stands on disk of a run that has ended: the records of its workers and agents.

Agents also recorded where ranks were when a collective timed out, in a hang, and before the end.
From these `ends_on_disk` makes the same values that agents send to their leader, for a run whose
leader has died, or whose records another process reads.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.ends import End, Kind, end_of_worker, reclassified
from muster import records
from muster.errors import NO_RETRY
from muster.run_files import AGENT, AGENT_END, ERRORS, RANK_END, STACKS, RunFile

# What is read of a rank's end, of an agent's, and of an inspection.
OF_RANK = ("rank", "host", "time_unix_s", "code", "cause", "message", "traceback")
OF_AGENT = ("index", "node", "code", "cause", "message", "ranks", "clock_offset_s")
OF_STACKS = ("sentences", "reports")
# Of an agent's end as earlier versions recorded it: without values.
OLD_KINDS = {"signal": Kind.SIGNAL, "refused": Kind.REFUSED, "launcher": Kind.LAUNCHER}


class Facts:
    """The facts about a run that has ended."""

    def __init__(self, run_dir: Path, world_size: int | None) -> None:
        self.run_dir = run_dir
        self.exits = read_exits(run_dir)
        self.agents = read_agents(run_dir)
        self.began = _records(AGENT, run_dir, "index", "node", "address")
        self.unreadable = records.all_unreadable(run_dir)
        self.offsets = {rank: one["clock_offset_s"] for one in self.agents for rank in one["ranks"]}
        if world_size is None:
            world_size = max([*self.exits, *self.offsets], default=-1) + 1
        self.world_size = world_size
        self.done = [rank for rank, one in self.exits.items() if one["cause"] == "done"]
        self.silent = sorted(set(range(world_size)) - set(self.exits))
        self.node = {rank: one["host"] for rank, one in self.exits.items()}
        for agent in (*self.began, *self.agents):  # a host may be several nodes
            self.node |= dict.fromkeys(agent.get("ranks", ()), agent["node"])
        # the workers that were alive until their agents ended them: how they ended
        ended = (how for one in self.agents for how in one.get("ended", {}).items())
        self.ended = {int(rank): how for rank, how in ended}
        # a worker's stderr is the first file that it makes
        errors = {rank: ERRORS.path(run_dir, rank=rank) for rank in self.silent}
        self.begun = {
            rank: path for rank, path in errors.items() if rank not in self.ended and path.exists()
        }
        self.never = [
            rank for rank in self.silent if rank not in self.ended and rank not in self.begun
        ]
        self.full = list(dict.fromkeys(one["full"] for one in self.agents if one.get("full")))

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes that have an agent's record."""
        return list(dict.fromkeys(one["node"] for one in (*self.began, *self.agents)))

    def end_of(self, rank: int) -> End | None:
        """How a rank ended, by its own record."""
        record = self.exits.get(rank)
        return end_of_worker(
            self.node.get(rank, "its node"),
            rank,
            record,
            clock_offset_s=self.offsets.get(rank, 0.0),
        )


def ends_on_disk(facts: Facts) -> list[End]:
    """What has ended, by the records of ranks, agents and inspections."""
    ends = [end for rank in facts.exits if (end := facts.end_of(rank)) is not None]
    for agent in facts.agents:
        ends += _of_agent(agent)
    ends += _of_ranks_without_record(facts, {end.rank for end in ends})
    ends += _gone(facts, ends)
    hang = stacks_seen(facts.run_dir, "hang")
    if hang.get("on_hang", "warn") != "warn" and "text" in hang:
        ends.append(of_hang(hang))
    timeout = of_timeout(stacks_seen(facts.run_dir, "timeout"), ends)
    ends += [] if timeout is None else [timeout]
    return ends


def _of_agent(agent: Mapping[str, Any]) -> list[End]:
    """What an agent has recorded of its node."""
    if isinstance(values := agent.get("ends"), list):
        return [end for value in values if (end := End.from_json(value)) is not None]
    at = agent.get("noticed_unix_s", 0.0)
    kind = OLD_KINDS.get(agent["cause"], Kind.OTHER)
    number = agent["code"] - 128 if kind is Kind.SIGNAL and agent["code"] > 128 else None
    if agent["cause"] in ("done", "stopped", "told") or (kind is Kind.SIGNAL and number is None):
        return []
    message = "" if kind is Kind.LAUNCHER else agent["message"]
    return [End(kind, agent["node"], at, code=agent["code"], signal=number, message=message)]


def _of_ranks_without_record(facts: Facts, known: set[int | None]) -> Iterator[End]:
    """Ranks that their agents ended, that died, and that never were."""
    for rank, how in facts.ended.items():
        if rank not in facts.exits and rank not in known:
            state = how["state"] or "hung"
            if how.get("survives"):
                state = f"{state} and could not be ended (pid {how.get('pid')})"
            yield End(Kind.ENDED, facts.node.get(rank, "its node"), 0.0, rank, message=state)
    for rank in facts.begun:
        if rank not in known:
            yield End(Kind.VANISHED, facts.node.get(rank, "its node"), 0.0, rank)
    if facts.never and not known.issuperset(facts.never):
        yield End(Kind.NOT_STARTED, "", 0.0, ranks=tuple(facts.never))


def _gone(facts: Facts, ends: list[End]) -> Iterator[End]:
    """The nodes that began, but did not record how they ended: others ended because of that."""
    recorded = {one["index"] for one in facts.agents}
    times = [end.time_unix_s for end in ends if end.kind in (Kind.SIGNAL, Kind.LAUNCHER)]
    if len(times) < len(recorded) or not times:
        return
    for one in facts.began:
        if one["index"] not in recorded:
            yield End(Kind.GONE, one["node"], min(times), address=one["address"])


def of_hang(seen: Mapping[str, Any]) -> End:
    """A hang for which a run was ended, from the inspection."""
    code = NO_RETRY if seen["on_hang"] == "stop" else 1
    return End(Kind.HANG, "", seen.get("time_unix_s", 0.0), code=code, message=seen["text"])


def of_timeout(seen: Mapping[str, Any], ends: Iterable[End]) -> End | None:
    """A collective that timed out, from the inspection, if ranks have ended because of that."""
    reports = seen.get("reports", ())
    waited = any(end.kind is Kind.TIMED_OUT for end in ends)
    if not seen or not (waited or any(one.get("gave_up") for one in reports)):
        return None
    return End(Kind.TIMEOUT, "", seen.get("time_unix_s", 0.0), message=seen["sentences"][0])


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    known = {
        rank: records.read(RANK_END, path, *OF_RANK)
        for rank, path in RANK_END.by_number(run_dir).items()
    }
    return {
        rank: reclassified({**record, "rank": rank})
        for rank, record in known.items()
        if record is not None
    }


def read_agents(run_dir: Path) -> list[dict[str, Any]]:
    """How each node's part ended, for nodes whose agent could record it."""
    return _records(AGENT_END, run_dir, *OF_AGENT)


def _records(file: RunFile, run_dir: Path, *needed: str) -> list[dict[str, Any]]:
    known = [records.read(file, path, *needed) for path in file.find(run_dir)]
    return [one for one in known if one is not None]


def stacks_seen(run_dir: Path, name: str) -> dict[str, Any]:
    """The inspection for a reason: "timeout", "hang" or "end"; empty if there was none.

    What it means is not in that of the end, unless ranks had waited in vain.
    """
    needed = OF_STACKS[name == "end" :]
    return records.read(STACKS, STACKS.path(run_dir, name=name), *needed) or {}
