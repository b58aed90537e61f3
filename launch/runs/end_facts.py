"""Read the records that the workers and agents of an ended run left on disk.

Agents also recorded where ranks were when a collective timed out, in a hang, and before the end.
`ends_on_disk` turns these records into the values that agents send to their leader. It is used if a
run's leader has died, and by processes that read the records of a run that they have not led.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from launch.ends import OLD_KINDS, End, Kind, end_of_worker, reclassified
from launch.runs.last_output import lost_peer_in
from muster import records
from muster.errors import NO_RETRY
from muster.run_files import AGENT, AGENT_END, ERRORS, RANK_END, STACKS, RunFile

# The fields that are read from records of a rank's end, an agent's end, and an inspection.
RANK_END_FIELDS = ("rank", "host", "time_unix_s", "code", "cause", "message", "traceback")
AGENT_END_FIELDS = ("index", "node", "code", "cause", "message", "ranks", "clock_offset_s")
STACKS_FIELDS = ("sentences", "reports")


class EndFacts:
    """What the records show about a run that has ended."""

    def __init__(self, run_dir: Path, world_size: int | None) -> None:
        self.run_dir = run_dir
        self.exits = read_exits(run_dir)
        self.agent_ends = read_agents(run_dir)
        self.agent_starts = _records(AGENT, run_dir, "index", "node", "address")
        self.unreadable = records.all_unreadable(run_dir)
        self.offsets = {
            rank: agent["clock_offset_s"] for agent in self.agent_ends for rank in agent["ranks"]
        }
        if world_size is None:
            world_size = max([*self.exits, *self.offsets], default=-1) + 1
        self.world_size = world_size
        self.done_ranks = [rank for rank, end in self.exits.items() if end["cause"] == "done"]
        self.silent_ranks = sorted(set(range(world_size)) - set(self.exits))
        self.node_of = {rank: end["host"] for rank, end in self.exits.items()}
        self.muster_of = {  # the folder of the checkout, by rank
            rank: str(agent.get("muster", ""))
            for agent in self.agent_starts
            for rank in agent.get("ranks", ())
        }
        for agent in (*self.agent_starts, *self.agent_ends):  # a host may be several nodes
            self.node_of |= dict.fromkeys(agent.get("ranks", ()), agent["node"])
        # how workers ended that were alive until their agent ended them; `ended` in older records
        self.terminated = {
            int(rank): how
            for agent in self.agent_ends
            for rank, how in agent.get("terminated", agent.get("ended", {})).items()
        }
        without_record = [rank for rank in self.silent_ranks if rank not in self.terminated]
        # a worker's stderr is the first file that it creates
        errors = {rank: ERRORS.path(run_dir, rank=rank) for rank in without_record}
        self.vanished = {rank: path for rank, path in errors.items() if path.exists()}
        self.never_started = [rank for rank in without_record if rank not in self.vanished]
        full = (agent["full"] for agent in self.agent_ends if agent.get("full"))
        self.full_disks = list(dict.fromkeys(full))  # the agents' messages about them

    @cached_property
    def nodes(self) -> list[str]:
        """All nodes that have an agent's record."""
        agents = (*self.agent_starts, *self.agent_ends)
        return list(dict.fromkeys(agent["node"] for agent in agents))

    def end_of(self, rank: int) -> End | None:
        """How a rank ended, by its own record."""
        record = self.exits.get(rank)
        return end_of_worker(
            self.node_of.get(rank, "its node"),
            rank,
            record,
            clock_offset_s=self.offsets.get(rank, 0.0),
        )


def ends_on_disk(facts: EndFacts) -> list[End]:
    """The ends, according to the records of ranks, agents and inspections."""
    ends = [end for rank in facts.exits if (end := facts.end_of(rank)) is not None]
    for agent in facts.agent_ends:
        ends += _agent_ends(agent)
    ends += _ends_without_record(facts, {end.rank for end in ends})
    ends += _lost_nodes(facts, ends)
    hang = stacks_seen(facts.run_dir, "hang")
    if hang.get("on_hang", "warn") != "warn" and "text" in hang:
        ends.append(hang_end(hang))
    timeout = timeout_end(stacks_seen(facts.run_dir, "timeout"), ends)
    ends += [] if timeout is None else [timeout]
    return ends


def _agent_ends(agent: Mapping[str, Any]) -> list[End]:
    """The ends that an agent has recorded for its node."""
    if isinstance(values := agent.get("ends"), list):
        return [end for value in values if (end := End.from_json(value)) is not None]
    time_unix_s = agent.get("noticed_unix_s", 0.0)
    kind = OLD_KINDS.get(agent["cause"], Kind.FAILED)  # an earlier version recorded no values
    number = agent["code"] - 128 if kind is Kind.SIGNAL and agent["code"] > 128 else None
    if agent["cause"] in ("done", "stopped", "told") or (kind is Kind.SIGNAL and number is None):
        return []
    message = "" if kind in (Kind.JOB, Kind.SIGNAL) else agent["message"]
    return [
        End(kind, agent["node"], time_unix_s, code=agent["code"], signal=number, message=message)
    ]


def _ends_without_record(facts: EndFacts, known_ranks: set[int | None]) -> Iterator[End]:
    """The ends of ranks that agents ended, that died, or that never started."""
    for rank, how in facts.terminated.items():
        if rank not in facts.exits and rank not in known_ranks:
            state = how["state"] or "hung"
            if how.get("survives"):
                state = f"{state} and could not be ended (pid {how.get('pid')})"
            yield End(
                Kind.UNRECORDED, facts.node_of.get(rank, "its node"), 0.0, rank, message=state
            )
    for rank, errors in facts.vanished.items():
        if rank not in known_ranks:
            node = facts.node_of.get(rank, "its node")
            end = End(Kind.UNRECORDED, node, 0.0, rank)
            if why := lost_peer_in(errors):
                record = {"cause": "lost_peer", "message": why, "traceback": ""}
                end = end_of_worker(node, rank, {**record, "time_unix_s": 0.0, "code": 1}) or end
            yield end
    if facts.never_started and not known_ranks.issuperset(facts.never_started):
        yield End(Kind.NOT_STARTED, "", 0.0, ranks=tuple(facts.never_started))


def _lost_nodes(facts: EndFacts, ends: list[End]) -> Iterator[End]:
    """The nodes whose agents recorded no end; the other nodes ended because of that."""
    recorded = {agent["index"] for agent in facts.agent_ends}
    times = [end.time_unix_s for end in ends if end.was_signalled or end.kind is Kind.JOB]
    if len(times) < len(recorded) or not times:
        return
    for agent in facts.agent_starts:
        if agent["index"] not in recorded:
            yield End(Kind.NODE_LOST, agent["node"], min(times), address=agent["address"])


def hang_end(seen: Mapping[str, Any]) -> End:
    """A hang for which a run was ended, from the inspection."""
    code = NO_RETRY if seen["on_hang"] == "stop" else 1
    return End(Kind.HANG, "", seen.get("time_unix_s", 0.0), code=code, message=seen["text"])


def timeout_end(seen: Mapping[str, Any], ends: Iterable[End]) -> End | None:
    """A collective that timed out, from the inspection, if ranks have ended because of that."""
    reports = seen.get("reports", ())
    waited = any(end.waited_in_vain for end in ends)
    if not seen or not (waited or any(report.get("gave_up") for report in reports)):
        return None
    return End(Kind.TIMEOUT, "", seen.get("time_unix_s", 0.0), message=seen["sentences"][0])


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    ends = {
        rank: records.read(RANK_END, path, *RANK_END_FIELDS)
        for rank, path in RANK_END.by_number(run_dir).items()
    }
    return {
        rank: reclassified({**record, "rank": rank})
        for rank, record in ends.items()
        if record is not None
    }


def read_agents(run_dir: Path) -> list[dict[str, Any]]:
    """The end record of every agent that left one."""
    return _records(AGENT_END, run_dir, *AGENT_END_FIELDS)


def _records(file: RunFile, run_dir: Path, *needed: str) -> list[dict[str, Any]]:
    read = [records.read(file, path, *needed) for path in file.find(run_dir)]
    return [record for record in read if record is not None]


def stacks_seen(run_dir: Path, name: str) -> dict[str, Any]:
    """The inspection for a reason: "timeout", "hang" or "end"; empty if there was none.

    An inspection at the end has sentences only if ranks had waited in vain.
    """
    needed = STACKS_FIELDS[name == "end" :]
    return records.read(STACKS, STACKS.path(run_dir, name=name), *needed) or {}
