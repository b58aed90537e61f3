"""Which rank failed first, and why: the cause alone, not the echoes of its neighbours."""

import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.runs import hang_record, last_output
from muster.errors import STOPPED
from muster.run_files import AGENT, AGENT_END, AGENT_ERRORS, AGENT_LOG, ERRORS, RANK_END
from muster.worker import lost_peer
from muster.writing import read_json

# "exit": a program of the user's ended itself with this exit code. The others are
OWN_CAUSES = ("refused", "crash", "exit")  # echoes: a lost peer, a signal of the agent
KILLED = 128 + 9
KILL = " was killed by "
# What gloo, nccl and the store say when another rank has not come to a collective.
TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)
# What torch.distributed raises; `RuntimeError` is gloo's.
TORCH_ERRORS = tuple("RuntimeError DistBackendError DistNetworkError DistStoreError".split())


@dataclass(frozen=True)
class Failure:
    """The exit code of a failed run, and what to print about it."""

    code: int
    text: str  # the cause, in the words it was given: what one should see last
    context: tuple[str, ...] = ()  # lines to go before it
    rank: int | None = None  # the one that failed first, where it is one


def read_exits(run_dir: Path) -> dict[int, dict[str, Any]]:
    """The exit record of every rank that left one."""
    return {int(record["rank"]): _judged(record) for record in _records(RANK_END.find(run_dir))}


def _judged(record: dict[str, Any]) -> dict[str, Any]:
    """`record`, with the consequence of a lost rank told from a crash, whatever program it was."""
    kind = str(record["message"]).partition(":")[0]
    if (
        record["cause"] == "crash"
        and kind in TORCH_ERRORS
        and lost_peer.is_consequence(record["message"])
    ):
        return {**record, "cause": "lost_peer"}
    return record


def read_agents(run_dir: Path) -> list[dict[str, Any]]:
    """How each node's part ended, for those whose agent could still say so."""
    return _records(AGENT_END.find(run_dir))


def explain(
    run_dir: Path, world_size: int | None, code: int = 0, trouble: str | None = None
) -> Failure | None:
    """Why a run whose processes have all ended failed; None if every rank is done.

    `code` and `trouble` are what the launching side has to say of it.
    """
    exits, agents = read_exits(run_dir), read_agents(run_dir)
    offsets = {rank: one["clock_offset_s"] for one in agents for rank in one["ranks"]}
    if world_size is None:
        world_size = max([*exits, *offsets], default=-1) + 1
    done = [rank for rank, one in exits.items() if one["cause"] == "done"]
    if len(done) == world_size and not code:
        return None
    stopped = [one["message"] for one in exits.values() if one["cause"] == "stopped"]
    if stopped and len(stopped) == world_size:
        if code == 1 and trouble is not None:  # which is why the workers were told to stop
            return Failure(code, _lines(trouble), (stopped[0],))
        return Failure(STOPPED, stopped[0])
    # by one clock, that of node 0: the others' may be seconds off
    ordered = sorted(
        exits.values(), key=lambda one: one["time_unix_s"] + offsets.get(one["rank"], 0.0)
    )
    own = [record for record in ordered if record["cause"] in OWN_CAUSES]
    by_signal = bool(agents) and all(one["cause"] == "signal" for one in agents)
    silent = sorted(set(range(world_size)) - set(exits))
    ended = _ended(agents)  # which of them were alive until their agents ended them
    begun = {rank: _output(run_dir, rank) for rank in silent if rank not in ended}
    begun = {rank: path for rank, path in begun.items() if path.exists()}
    if hang := hang_record.of_hang(run_dir):
        return Failure(*hang)
    if by_signal and not (gone := _gone(run_dir, agents)):
        return _stopped(agents[0], own)
    if own:
        return _own_failure(own, world_size)
    waited = [f"rank {one['rank']}: {one['message']}" for one in ordered if _timed_out(one)]
    if late := hang_record.of_timeout(run_dir, waited):
        return Failure(*late)
    if refused := [one for one in agents if one["cause"] == "refused"]:
        return Failure(refused[0]["code"], _lines(refused[0]["message"]))
    if by_signal:  # a scheduler ends all others before they can notice
        return _node_lost(gone, silent)
    if killed := [one for one in agents if one["cause"] == "command" and KILL in one["message"]]:
        return _command_killed(run_dir, killed[0], sorted(exits))
    lost = [one["message"] for one in agents if one["cause"] == "peer"]
    if lost and not any(one["cause"] == "command" for one in agents):
        return _node_lost(lost[0], silent)
    signalled = {rank: one for one in agents if one["cause"] == "signal" for rank in one["ranks"]}
    if begun and begun.keys() <= signalled.keys():  # which ended them, and the others with them
        return _node_lost(signalled[min(begun)]["message"], silent)
    aborted = {rank: _output(run_dir, rank) for rank in done}
    aborted = {rank: path for rank, path in aborted.items() if last_output.crash_of(_text(path))}
    if aborted:  # as Python ended, after they had said that they are done
        return _killed(aborted, [rank for rank in sorted(exits) if rank not in done], agents)
    if begun:
        return _killed(begun, sorted(exits), agents)
    if hung := _hung(run_dir, ordered, ended):
        return hung
    if never := [rank for rank in silent if rank not in ended]:
        return _never_started(run_dir, never, lost[0] if lost else trouble)
    if not ordered or len(done) == world_size:
        return Failure(code or 1, _lines(trouble or "all workers are done, but the job is not"))
    first = next((one for one in ordered if one["cause"] != "done"), ordered[0])
    if signalled:  # some ranks have heeded it, and the others lost them
        return _stopped(next(iter(signalled.values())), own)
    if first["cause"] == "lost_peer" and done:
        return _left_early(done, exits, first)
    return Failure(first["code"] or 1, _lines(first["message"]) or "error: a worker failed")


def _ended(agents: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """The workers that were alive until their agents ended them: how, and on which node."""
    return {
        int(rank): {**how, "node": one["node"]}
        for one in agents
        for rank, how in one.get("ended", {}).items()
    }


def _hung(
    run_dir: Path, ordered: Sequence[Mapping[str, Any]], ended: Mapping[int, Mapping[str, Any]]
) -> Failure | None:
    """The ranks for which the others waited until they timed out; None if nobody did."""
    waited = [one for one in ordered if one["cause"] == "lost_peer" and _timed_out(one)]
    spoke = {one["rank"] for one in ordered}
    mute = {rank: how for rank, how in ended.items() if rank not in spoke}
    # One that SIGTERM could end was busy elsewhere; one that it could not is the surer sign.
    late = mute or {
        one["rank"]: {"node": one["host"], "state": "was busy elsewhere"}
        for one in ordered
        if one["cause"] == "signal"
    }
    if not waited or not late:
        return None
    whom = "; ".join(
        f"rank {rank} on {how['node']} {how['state'] or 'hung'}"
        + (f" and could not be ended (pid {how['pid']})" if how.get("survives") else "")
        for rank, how in sorted(late.items())
    )
    waiting = sorted(one["rank"] for one in waited)
    return Failure(
        1,
        f"error: {whom}: {_ranks(waiting)} waited for {'it' if len(late) == 1 else 'them'} and "
        "timed out; see --timeout-s",
        (f"{_ranks(waiting)}: {waited[0]['message']}", *hang_record.at_the_end(run_dir)),
    )


def _left_early(
    done: Sequence[int], exits: Mapping[int, Mapping[str, Any]], first: Mapping[str, Any]
) -> Failure:
    """Ranks have ended well, and others failed in a collective that needed them."""
    hosts = ", ".join(sorted({exits[rank]["host"] for rank in done}))
    left = f"{_ranks(done)} on {hosts} ended with exit code 0 while others were in a collective"
    also = (_lines(first["message"]),)
    return Failure(1, f"error: {left}; all have to leave the loop at the same step", also)


def _timed_out(record: Mapping[str, Any]) -> bool:
    return bool(TIMED_OUT.search(record["message"]))


def _gone(run_dir: Path, agents: Sequence[Mapping[str, Any]]) -> str:
    """The nodes that began, but left no word of how they ended."""
    ended = {one["index"] for one in agents}
    return "\n".join(
        f"{one['node']} ({one['address']}) is gone: its agent was killed, or the node went down"
        for one in _records(AGENT.find(run_dir))
        if one["index"] not in ended
    )


def _records(paths: Iterable[Path]) -> list[dict[str, Any]]:
    return [record for path in paths if (record := read_json(path)) is not None]


def _output(run_dir: Path, rank: int) -> Path:
    """Where a worker sends its stderr: the first thing it does."""
    return ERRORS.path(run_dir, rank=rank)


def _stopped(agent: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> Failure:
    """Somebody had the run end; what programs say of that is no failure, but worth a look."""
    name = signal.Signals(agent["code"] - 128).name
    asked = agent["message"].endswith(f"was sent {name}")
    text = f"error: stopped by {name}" if asked else f"error: {agent['message']}"
    tracebacks = [one["traceback"].rstrip() for one in own if one["traceback"]]
    return Failure(agent["code"], text, tuple(tracebacks[:1]))


def _own_failure(own: Sequence[Mapping[str, Any]], world_size: int) -> Failure:
    first, *more = own
    alike = sorted(one["rank"] for one in more if one["message"] == first["message"])
    also = (f"{_ranks(alike)} failed in the same way",) if alike else ()
    who = f"rank {first['rank']} on {first['host']}"
    if not first["traceback"]:
        where = f"{who}: " if first["cause"] == "exit" else ""
        return Failure(first["code"], _lines(where + first["message"]), also, first["rank"])
    clock = time.strftime("%H:%M:%S", time.localtime(first["time_unix_s"]))
    alone = world_size == 1 or alike
    how = (
        f"failed at {clock}"
        if alone
        else f"failed first, at {clock}; the others stopped because of it"
    )
    context = f"error: {who} {how}:"
    text = first["traceback"].rstrip()
    return Failure(first["code"], text, (*also, context), first["rank"])


def _command_killed(run_dir: Path, agent: Mapping[str, Any], echoes: Sequence[int]) -> Failure:
    of = f" ({_ranks(agent['ranks'])})" if agent["ranks"] else ""
    context = [f"{_ranks(echoes)} stopped because of it"] if echoes else []
    name = re.split(r"\W", agent["message"].rpartition(KILL)[2])[0]
    number = signal.Signals[name] if name in signal.Signals.__members__ else signal.SIGKILL
    for rank in agent["ranks"]:  # where it was, in its own words
        if crash := last_output.crash_of(_text(_output(run_dir, rank))):
            context += crash.dump
    why = _starved([agent]) or "out of memory?" if number == signal.SIGKILL else ""
    return Failure(
        128 + number, f"error: {agent['message']}{of}{'; ' * bool(why)}{why}", tuple(context)
    )


def _starved(agents: Iterable[Mapping[str, Any]]) -> str:
    """On which nodes the kernel says that memory ran out; nothing where it does not."""
    nodes = [one["node"] for one in agents if one.get("oom_kills")]
    return f"out of memory on {', '.join(nodes)}: the kernel killed it for that" if nodes else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


def _node_lost(message: str, silent: Sequence[int]) -> Failure:
    context = (f"{_ranks(silent)} left no word",) if silent else ()
    return Failure(1, _lines(message), context)


def _killed(
    outputs: Mapping[int, Path], echoes: Sequence[int], agents: Sequence[Mapping[str, Any]]
) -> Failure:
    also = (f"{_ranks(echoes)} stopped because of it",) if echoes else ()
    node = {rank: one["node"] for one in agents for rank in one["ranks"]}
    for rank, path in outputs.items():
        if crash := last_output.crash_of(_text(path)):  # an error in C++ that nobody caught, say
            on = f" on {node[rank]}" if rank in node else ""
            text = f"error: rank {rank}{on} died: {crash.why}"
            return Failure(crash.code, text, (*crash.dump, *also), rank)
    files = ", ".join(map(str, outputs.values()))
    why = _starved(agents) or "killed? out of memory?"
    nodes = ", ".join(sorted({node[rank] for rank in outputs if rank in node}))
    text = f"{_ranks(outputs)} ended without a word ({why}){' on ' * bool(nodes)}{nodes}"
    return Failure(KILLED, f"error: {text}; its output: {files}", also)


def _never_started(run_dir: Path, silent: Sequence[int], trouble: str | None) -> Failure:
    """Workers that failed before they had a file of their own: their agent's log has why."""
    # the agent that was the first to fall silent is the one that was not stopped by us
    logs = [*AGENT_LOG.find(run_dir), *AGENT_ERRORS.find(run_dir)]
    logs.sort(key=lambda log: log.stat().st_mtime_ns)
    if found := last_output.of_logs(logs):
        log, text = found
        context = f"error: {_ranks(silent)} failed before the start; the end of {log}:"
        return Failure(1, text, (context,))
    why = trouble or "and torchrun said nothing"
    return Failure(1, f"error: {_ranks(silent)} never started: {why}")


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"


def _lines(message: str) -> str:
    return "\n".join(f"error: {line}" for line in message.splitlines())
