"""The facts about a run that has ended, from the records of its workers and agents.

Agents also recorded where ranks were when a collective timed out, in a hang, and before the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from launch.nodes.message_forms import fits, is_size
from muster.run_files import AGENT, AGENT_END, ERRORS, RANK_END, STACKS
from muster.worker import lost_peer
from muster.writing import read_json

# "exit": a user's program ended itself with an exit code. Other causes are
OWN_CAUSES = ("refused", "crash", "exit")  # consequences: a lost peer, a signal of the agent
# Exceptions of torch.distributed; `RuntimeError` is gloo's.
TORCH_ERRORS = tuple("RuntimeError DistBackendError DistNetworkError DistStoreError".split())
PEER_FAILED = "PeerFailed"  # what `muster.init` makes of them, where it can name the lost rank

SECONDS = 1e11


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    return fits(value, (int, float)) and abs(value) < SECONDS


def _is_code(value: Any) -> bool:
    return fits(value, int) and 0 <= value < 256


def _are_victims(value: object) -> bool:
    """Whether it has, by rank, the state of each worker that its agent has ended."""
    if not isinstance(value, dict):
        return False
    ranks = all(key.isascii() and key.isdigit() and len(key) < 10 for key in value)
    return ranks and all(
        isinstance(one, dict) and _is_text(one.get("state")) and is_size(one.get("pid", 0))
        for one in value.values()
    )


# What is read of the record of a worker's end, and of an agent: its form, and what counts where it
# is missing.
RANK: dict[str, tuple[Any, Any]] = {
    "host": ("?", _is_text),
    "time_unix_s": (0.0, _is_time),
    "code": (1, _is_code),
    "cause": ("exit", _is_text),
    "message": ("", _is_text),
    "traceback": ("", _is_text),
}
NODE: dict[str, tuple[Any, Any]] = {
    "index": (0, is_size),
    "node": ("?", _is_text),
    "address": ("?", _is_text),
    "code": (1, _is_code),
    "cause": ("", _is_text),
    "message": ("", _is_text),
    "ranks": ([], [is_size]),
    "noticed_unix_s": (0.0, _is_time),
    "clock_offset_s": (0.0, _is_time),
    "oom_kills": (0, is_size),
    "full": ("", _is_text),
    "ended": ({}, _are_victims),
}


class Facts:
    """The facts about a run that has ended."""

    def __init__(
        self, run_dir: Path, world_size: int | None, code: int, trouble: str | None
    ) -> None:
        self.run_dir, self.code, self.trouble = run_dir, code, trouble
        self.exits, self.agents = read_exits(run_dir), read_agents(run_dir)
        offsets = {rank: one["clock_offset_s"] for one in self.agents for rank in one["ranks"]}
        if world_size is None:
            world_size = max([*self.exits, *offsets], default=-1) + 1
        self.world_size = world_size
        # by one clock, that of node 0: others may differ by seconds
        self.ordered = sorted(
            self.exits.values(), key=lambda one: one["time_unix_s"] + offsets.get(one["rank"], 0.0)
        )
        self.own = [record for record in self.ordered if record["cause"] in OWN_CAUSES]
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


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    paths = RANK_END.by_number(run_dir)
    ends = ((rank, _record(path, RANK)) for rank, path in paths.items())
    return {rank: _judged({**record, "rank": rank}) for rank, record in ends if record is not None}


def _judged(record: dict[str, Any]) -> dict[str, Any]:
    """`record`; a crash because of a lost rank becomes a consequence, for any program."""
    kind = str(record["message"]).partition(":")[0]
    of_torch = kind in TORCH_ERRORS and lost_peer.is_consequence(record["message"])
    is_consequence = record["cause"] == "crash" and (of_torch or kind == PEER_FAILED)
    return {**record, "cause": "lost_peer"} if is_consequence else record


def read_agents(run_dir: Path) -> list[dict[str, Any]]:
    """How each node's part ended, for nodes whose agent could record it."""
    return _records(AGENT_END.find(run_dir), NODE)


def _gone(run_dir: Path, agents: Sequence[Mapping[str, Any]]) -> str:
    """The nodes that began, but did not record how they ended."""
    ended = {one["index"] for one in agents}
    return "\n".join(
        f"{one['node']} ({one['address']}) is gone: its agent was killed, or the node went down"
        for one in _records(AGENT.find(run_dir), NODE)
        if one["index"] not in ended
    )


def _records(paths: Iterable[Path], form: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [record for path in paths if (record := _record(path, form)) is not None]


def _record(path: Path, form: Mapping[str, Any]) -> dict[str, Any] | None:
    """A record, with what it lacks; None where it is none: a node may have sent anything."""
    record = read_json(path)
    if record is None:
        return None
    needed = {key: default for key, (default, _) in form.items()} | record
    forms = {key: one for key, (_, one) in form.items()}
    is_ours = fits({key: needed[key] for key in forms}, forms)
    return needed if is_ours else None


def stacks_seen(run_dir: Path, name: str) -> dict[str, Any]:
    """The inspection for a reason: "timeout", "hang" or "end"; empty if there was none."""
    return read_json(STACKS.path(run_dir, name=name)) or {}
