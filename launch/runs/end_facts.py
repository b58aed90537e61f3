"""The facts about a run that has ended, from the records of its workers and agents.

Agents also recorded where ranks were when a collective timed out, in a hang, and before the end.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from muster import records
from muster.run_files import AGENT, AGENT_END, ERRORS, RANK_END, STACKS, RunFile
from muster.worker import lost_peer

# "exit": a user's program ended itself with an exit code. Other causes are
OWN_CAUSES = ("refused", "crash", "exit")  # consequences: a lost peer, a signal of the agent
# What is read of a rank's end, of an agent's, and of an inspection.
OF_RANK = ("rank", "host", "time_unix_s", "code", "cause", "message", "traceback")
OF_AGENT = ("index", "node", "code", "cause", "message", "ranks", "clock_offset_s")
OF_STACKS = ("sentences", "reports")
PEER_FAILED = "PeerFailed"  # what `muster.init` makes of them, where it can name the lost rank


class Facts:
    """The facts about a run that has ended."""

    def __init__(
        self, run_dir: Path, world_size: int | None, code: int, trouble: str | None
    ) -> None:
        self.run_dir, self.code, self.trouble = run_dir, code, trouble
        self.exits, self.agents = read_exits(run_dir), read_agents(run_dir)
        self.unreadable = records.all_unreadable(run_dir)
        offsets = {rank: one["clock_offset_s"] for one in self.agents for rank in one["ranks"]}
        if world_size is None:
            world_size = max([*self.exits, *offsets], default=-1) + 1
        self.world_size = world_size
        # by one clock, that of node 0: others may differ by seconds
        self.ordered = sorted(
            self.exits.values(), key=lambda one: one["time_unix_s"] + offsets.get(one["rank"], 0.0)
        )
        stops = any(agent["cause"] == "signal" for agent in self.agents)
        self.own = [record for record in self.ordered if _is_own(record, stops)]
        self.done = [rank for rank, one in self.exits.items() if one["cause"] == "done"]
        self.silent = sorted(set(range(world_size)) - set(self.exits))
        self.node = {rank: one["host"] for rank, one in self.exits.items()}
        self.node |= {int(rank): one["node"] for one in self.agents for rank in one["ranks"]}
        # the workers that were alive until their agents ended them: how they ended
        ended = (how for one in self.agents for how in one.get("ended", {}).items())
        self.ended = {int(rank): how for rank, how in ended}
        # a worker's stderr is the first file that it makes
        errors = {one: ERRORS.path(run_dir, rank=one) for one in self.silent}
        self.begun = {
            rank: path for rank, path in errors.items() if rank not in self.ended and path.exists()
        }
        self.full = list(dict.fromkeys(one["full"] for one in self.agents if one.get("full")))
        self.lost = [one["message"] for one in self.agents if one["cause"] == "peer"]
        signals = [one for one in self.agents if one["cause"] == "signal"]
        self.by_signal = bool(signals) and len(signals) == len(self.agents)
        self.signalled = {rank: one for one in signals for rank in one["ranks"]}
        self.gone = _gone(run_dir, self.agents) if self.by_signal else ""

    @property
    def first_echo(self) -> dict[str, Any]:
        """The first record of a worker that did not end well; there must be one."""
        return next((one for one in self.ordered if one["cause"] != "done"), self.ordered[0])


def _is_own(record: Mapping[str, Any], is_stopped: bool) -> bool:
    """Whether it is no consequence; nor is a KeyboardInterrupt if no signal stopped the run."""
    by_itself = record["cause"] == "signal" and bool(record["traceback"]) and not is_stopped
    return record["cause"] in OWN_CAUSES or by_itself


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    known = {
        rank: records.read(RANK_END, path, *OF_RANK)
        for rank, path in RANK_END.by_number(run_dir).items()
    }
    return {
        rank: _judged({**record, "rank": rank})
        for rank, record in known.items()
        if record is not None
    }


def _judged(record: dict[str, Any]) -> dict[str, Any]:
    """`record`; a crash because of a lost rank becomes a consequence, for any program."""
    kind = str(record["message"]).partition(":")[0]
    of_torch = lost_peer.is_of_torch(str(record["message"]))
    is_consequence = record["cause"] == "crash" and (of_torch or kind == PEER_FAILED)
    return {**record, "cause": "lost_peer"} if is_consequence else record


def read_agents(run_dir: Path) -> list[dict[str, Any]]:
    """How each node's part ended, for nodes whose agent could record it."""
    return _records(AGENT_END, run_dir, *OF_AGENT)


def _gone(run_dir: Path, agents: Sequence[Mapping[str, Any]]) -> str:
    """The nodes that began, but did not record how they ended."""
    ended = {one["index"] for one in agents}
    return "\n".join(
        f"{one['node']} ({one['address']}) is gone: its agent was killed, or the node went down"
        for one in _records(AGENT, run_dir, "index", "node", "address")
        if one["index"] not in ended
    )


def _records(file: RunFile, run_dir: Path, *needed: str) -> list[dict[str, Any]]:
    known = [records.read(file, path, *needed) for path in file.find(run_dir)]
    return [one for one in known if one is not None]


def stacks_seen(run_dir: Path, name: str) -> dict[str, Any]:
    """The inspection for a reason: "timeout", "hang" or "end"; empty if there was none.

    What it means is not in that of the end, unless ranks had waited in vain.
    """
    needed = OF_STACKS[name == "end" :]
    return records.read(STACKS, STACKS.path(run_dir, name=name), *needed) or {}
