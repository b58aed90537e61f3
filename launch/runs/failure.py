"""Find which rank failed first, and why: only the cause, not the consequences on other ranks.

When one rank fails, the others lose it, and the scheduler or the leader ends the rest. So a failed
run leaves many records, of which one is the cause:

    exits/rank_*.json      how a worker ended, by its own record; missing if it was killed
    agents/node_*.json     how a node's part ended, by its agent's record
    workers/rank_*.err     the last output, where a crash in C++ is found
    inspection             what agents saw of ranks that waited or hung, before they were ended

`Facts` reads these once. `RULES` are tried in order, and the first that applies gives the answer.
First come rules for what can only be a cause (all stopped as requested; a hang was seen; a rank's
own traceback). Last come rules for what may be a consequence (a node is lost; a rank died without a
record; a rank only lost another). The comment of each rule says why it comes before the next.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launch.nodes.message_forms import ODD
from launch.runs import last_output
from launch.runs.end_facts import Facts, stacks_seen
from launch.runs.run_record import output_lines
from muster.errors import NO_RETRY, STOPPED, is_full
from muster.orderly_stop import signal_name, signal_number
from muster.run_files import AGENT_ERRORS, AGENT_LOG, ERRORS, EXIT, SNAPSHOT, SNAPSHOT_RECORD
from muster.worker.lost_peer import TIMED_OUT
from muster.writing import full_disk

KILLED = 128 + 9
KILL = " was killed by "
OF_RANK = re.compile(r"ranks? (\d+)\b")  # at the beginning of an agent's line
ENDED_WELL = "its program had ended with exit code 0, and Python was ending"
OUT_OF_MEMORY, DISK_FULL = "out_of_memory", "disk_full"
# In a line outside a traceback's frames; a message of torch, Python, the kernel or Slurm.
MEMORY = re.compile(
    r"^(?=\S).*?(out of memory|MemoryError|can't allocate memory|OUT_OF_MEMORY)", re.M | re.I
)
NO_CUDA = "Torch not compiled with CUDA enabled"
MISSING = re.compile(r"No such file or directory: '([^']*)'")
BRIEF = 300  # characters of an exception's text
FULL = re.compile(r"No space left|the disk is full")  # by the kernel, and by us


@dataclass(frozen=True)
class Failure:
    """The exit code of a failed run, and what to print about it."""

    code: int
    text: str  # the cause, in the original words: printed last
    context: tuple[str, ...] = ()  # lines to print before it
    rank: int | None = None  # the rank that failed first, if it was a rank
    cause: str = ""  # in one word: of `RULES`, `OUT_OF_MEMORY` or `DISK_FULL`
    brief: str = ""  # if `text` is a traceback: one line, with the end of `context`, in its place
    output: str = ""  # of a rank without a traceback: the last lines that it printed


def explain(
    run_dir: Path, world_size: int | None, code: int = 0, trouble: str | None = None
) -> Failure | None:
    """Why a run whose processes have all ended failed; None if every rank is done.

    `code` and `trouble` come from the launching side.
    """
    facts = Facts(run_dir, world_size, code, trouble)
    if len(facts.done) == facts.world_size and not code:
        return None
    found = ((rule(facts), cause) for rule, cause in RULES.items())
    failure, cause = next(pair for pair in found if pair[0] is not None)
    assert failure is not None
    if MEMORY.search(failure.text):
        cause = OUT_OF_MEMORY
    elif facts.full and FULL.search(failure.text):
        cause = DISK_FULL
    return replace(
        failure,
        code=failure.code or code or 1,  # a record that says 0 of a failure is odd, and no success
        cause=cause,
        context=(*facts.unreadable, *failure.context),
    )


def report(failure: Failure, run_dir: Path, shown: bytes = b"", attempt: int | None = None) -> str:
    """What is printed of a failure: the cause, then the end of that rank's output, and its place.

    It is empty where all was printed already, as of a run that was stopped in order.

    `shown`: the end of the output that was printed already, which is not printed again. `attempt`:
    its number, if others may follow.
    """
    seen = set(last_output.lines_of(shown))
    text = last_output.lines_of(failure.text.encode(errors="backslashreplace"))
    cause = [*failure.context, failure.text]
    if seen.issuperset(text):
        if failure.rank is None and not failure.context:
            return ""
        cause = [*failure.context]
        if failure.brief:  # it has the end of the context as well
            cause[-1:] = [failure.brief]
    output = "" if seen.issuperset(failure.output.splitlines()) else failure.output
    place = output_lines(run_dir.name, failure.rank, output, attempt)
    return "\n".join([f"run folder: {run_dir}", *cause, *place])


def odd_message(facts: Facts) -> Failure | None:
    odd = facts.trouble is not None and f" {ODD}: " in facts.trouble
    return Failure(1, _lines(facts.trouble or "")) if odd else None


def stopped_in_order(facts: Facts) -> Failure | None:
    stopped = [one["message"] for one in facts.exits.values() if one["cause"] == "stopped"]
    if not stopped or len(stopped) != facts.world_size:
        return None
    if facts.code == 1 and facts.trouble is not None:  # this is why they were told to stop
        return Failure(facts.code, _lines(facts.trouble), (stopped[0],))
    return Failure(STOPPED, stopped[0])


def ended_for_a_hang(facts: Facts) -> Failure | None:
    seen = stacks_seen(facts.run_dir, "hang")
    if seen.get("on_hang", "warn") == "warn" or "text" not in seen:
        return None
    code = NO_RETRY if seen["on_hang"] == "stop" else 1
    return Failure(code, f"error: {seen['text']}", tuple(seen["sentences"][1:]))


def stopped_by_signal(facts: Facts) -> Failure | None:
    if not facts.by_signal or facts.gone:
        return None
    return _stopped(facts.agents[0], facts.own)


def failed_by_itself(facts: Facts) -> Failure | None:
    if not facts.own:
        return None
    first, *more = facts.own
    alike = sorted(one["rank"] for one in more if one["message"] == first["message"])
    also = (f"{_ranks(alike)} failed in the same way",) if alike else ()
    who = f"rank {first['rank']} on {first['host']}"
    if not first["traceback"]:
        exited = first["cause"] == "exit"
        text = _lines(f"{who}: {first['message']}" if exited else first["message"])
        output = _last_lines(facts, first["rank"]) if exited else ""
        for printed in (
            "error: " + first["message"],
            first["message"],
        ):  # as by sys.exit("no data")
            output = f"\n{output}".removesuffix(f"\n{printed}").strip("\n")
        return Failure(first["code"], text, also, first["rank"], output=output)
    clock = time.strftime("%H:%M:%S", time.localtime(first["time_unix_s"]))
    how = f"failed first, at {clock}; the others stopped because of it"
    if facts.world_size == 1 or alike:
        how = f"failed at {clock}"
    context = (*also, *_advice(facts.run_dir, first), f"error: {who} {how}:")
    lines = [first["traceback"].rstrip()]
    if is_full(RuntimeError(first["message"])):  # which names no file where it only printed
        lines += map(_lines, facts.full[:1])
    return Failure(
        first["code"], "\n".join(lines), context, first["rank"], brief=_brief(context, first)
    )


def _brief(context: Sequence[str], record: Mapping[str, Any]) -> str:
    """The line before a traceback, with what the traceback ends with: it was shown already."""
    message = record["message"]
    cut = f"{message[:BRIEF]} ..." if len(message) > BRIEF else message
    return f"{context[-1]} {cut}"


def _last_lines(facts: Facts, rank: int) -> str:
    return last_output.end_of(facts.run_dir, rank)


def _advice(run_dir: Path, record: Mapping[str, Any]) -> Iterator[str]:
    """What a traceback does not say of the place in which its program ran."""
    if NO_CUDA in record["message"]:
        yield f"the torch of this Python on {record['host']} is for CPUs; --python names another"
    missing = MISSING.search(record["message"])
    if missing is None or not SNAPSHOT_RECORD.path(run_dir).is_file():
        return
    path = missing[1]
    copy = SNAPSHOT.path(run_dir.absolute())
    place = Path(os.path.normpath(copy / path))
    is_beside = ".." in Path(path).parts or place.is_relative_to(run_dir.absolute())
    if is_beside and not place.is_relative_to(copy):
        yield (
            f"the program ran in a copy of its project, {copy}: a path that leaves the project, as "
            f"{path} does, leads elsewhere from there; give it in full, or --no-snapshot"
        )


def collective_timed_out(facts: Facts) -> Failure | None:
    seen = stacks_seen(facts.run_dir, "timeout")
    reports = [one for one in seen.get("reports", ()) if one.get("gave_up")]
    # All that waited may have been ended before they wrote that down, for one that lost them failed
    # first; then what they said as they were looked at counts.
    waited = [one for one in facts.ordered if _timed_out(one)]
    waited = waited or [{"rank": one["rank"], **one["gave_up"]} for one in reports]
    if not waited or not seen:
        return None
    first, *more = seen["sentences"]
    how = f"rank {waited[0]['rank']}: {waited[0]['message']}"[:300]
    table = f"what each rank did: muster jobs stacks {facts.run_dir.name}"
    return Failure(1, f"error: {first}", (how, *more, table))


def agent_refused(facts: Facts) -> Failure | None:
    refused = next((one for one in facts.agents if one["cause"] == "refused"), None)
    return Failure(refused["code"], _lines(refused["message"])) if refused else None


def node_gone(facts: Facts) -> Failure | None:
    return _node_lost(facts.gone, facts.silent) if facts.gone else None


def command_killed(facts: Facts) -> Failure | None:
    killed = [one for one in facts.agents if one["cause"] == "command" and KILL in one["message"]]
    if not killed:
        return None
    agent = killed[0]
    is_rank = agent["message"].startswith("rank")  # else it has started all of these
    of = f" ({_ranks(agent['ranks'])})" if agent["ranks"] and not is_rank else ""
    context = [*_because_of_it(facts.exits)]
    number = signal_number(agent["message"].rpartition(KILL)[2])
    dumped = False
    for rank in agent["ranks"]:  # the stacks that the killed rank itself printed
        if crash := last_output.crash_of(ERRORS.path(facts.run_dir, rank=rank)):
            context += crash.dump
            dumped = True
    named = OF_RANK.match(agent["message"])
    first = int(named[1]) if named else None
    output = "" if first is None or dumped else _last_lines(facts, first)
    why = _starved([agent]) if number == signal.SIGKILL else ""
    if agent["ranks"] and set(agent["ranks"]) <= set(facts.done):
        why = ENDED_WELL
    elif number == signal.SIGKILL and not why:
        context.append(_perhaps_starved(agent["node"]))
    text = f"error: {agent['message']}{of}{'; ' * bool(why)}{why}"
    return Failure(128 + number, text, tuple(context), first, output=output)


def disk_full(facts: Facts) -> Failure | None:
    """The disk of the run folder; it is looked at here, too, since an agent may not have told."""
    full = [*facts.full, full_disk(EXIT.path(facts.run_dir))]
    return Failure(1, _lines(full[0]), _because_of_it(facts.exits)) if any(full) else None


def node_lost(facts: Facts) -> Failure | None:
    if facts.lost and not any(one["cause"] == "command" for one in facts.agents):
        return _node_lost(facts.lost[0], facts.silent)
    if facts.begun and facts.begun.keys() <= facts.signalled.keys():  # ended with their agent
        return _node_lost(facts.signalled[min(facts.begun)]["message"], facts.silent)
    return None


def aborted_at_exit(facts: Facts) -> Failure | None:
    aborted = {
        rank: path
        for rank in facts.done
        if last_output.crash_of(path := ERRORS.path(facts.run_dir, rank=rank))
    }
    failure = _killed(facts, aborted, set(facts.exits) - set(facts.done))
    if failure is None:
        return None
    return replace(failure, text=f"{failure.text}; {ENDED_WELL}")


def ended_without_a_word(facts: Facts) -> Failure | None:
    return _killed(facts, facts.begun, facts.exits)


def waited_for_in_vain(facts: Facts) -> Failure | None:
    waited = [one for one in facts.ordered if one["cause"] == "lost_peer" and _timed_out(one)]
    mute = {
        rank: (how["state"] or "hung")
        + (f" and could not be ended (pid {how.get('pid')})" if how.get("survives") else "")
        for rank, how in facts.ended.items()
        if rank not in facts.exits
    }
    # A process that SIGTERM ended was busy elsewhere; one that survived it is a clearer sign.
    signalled = [one["rank"] for one in facts.ordered if one["cause"] == "signal"]
    late = mute or dict.fromkeys(signalled, "was busy elsewhere")
    if not waited or not late:
        return None
    whom = "; ".join(
        f"rank {rank} on {facts.node.get(rank)} {state}" for rank, state in sorted(late.items())
    )
    waiting = _ranks(one["rank"] for one in waited)
    them = "it" if len(late) == 1 else "them"
    text = f"error: {whom}: {waiting} waited for {them} and timed out; see --timeout-s"
    seen = stacks_seen(facts.run_dir, "end").get("sentences", ())
    return Failure(1, text, (f"{waiting}: {waited[0]['message']}", *seen))


def never_started(facts: Facts) -> Failure | None:
    """Workers that failed before they had files of their own: their agent's log has the reason."""
    never = [rank for rank in facts.silent if rank not in facts.ended]
    if not never:
        return None
    # the agent that fell silent first is the one that was not stopped by others
    logs = [*AGENT_LOG.find(facts.run_dir), *AGENT_ERRORS.find(facts.run_dir)]
    logs.sort(key=lambda log: log.stat().st_mtime_ns)
    if found := last_output.of_logs(logs):
        log, text = found
        context = f"error: {_ranks(never)} failed before the start; the end of {log}:"
        return Failure(1, text, (context,))
    why = facts.lost[0] if facts.lost else facts.trouble or "and torchrun said nothing"
    return Failure(1, f"error: {_ranks(never)} never started: {why}")


def failed_though_done(facts: Facts) -> Failure | None:
    if facts.ordered and len(facts.done) != facts.world_size:
        return None
    why = facts.trouble or "all workers are done, but the job is not"
    return Failure(facts.code or 1, _lines(why))


def stopped_in_part(facts: Facts) -> Failure | None:
    first = next(iter(facts.signalled.values()), None)
    return _stopped(first, facts.own) if first else None


def left_early(facts: Facts) -> Failure | None:
    """Some ranks ended well, and others failed in a collective that needed them."""
    first = facts.first_echo
    if first["cause"] != "lost_peer" or not facts.done:
        return None
    hosts = ", ".join(sorted({facts.exits[rank]["host"] for rank in facts.done}))
    text = (
        f"error: {_ranks(facts.done)} on {hosts} ended with exit code 0 while others were in a "
        "collective; all have to leave the loop at the same step"
    )
    return Failure(1, text, rank=min(facts.done))  # what the others lost it by says no more


def first_echo(facts: Facts) -> Failure:
    first = facts.first_echo
    text = _lines(first["message"]) or "error: a worker failed"
    if not first["traceback"]:
        return Failure(first["code"] or 1, text, rank=first["rank"])
    context = (f"error: rank {first['rank']} on {first['host']} lost another worker:",)
    brief = _brief(context, first)
    return Failure(
        first["code"] or 1, first["traceback"].rstrip(), context, first["rank"], brief=brief
    )


# The first rule that applies gives the cause, here with its word in exit.json. Each comment says
# why the rule comes before those below it.
RULES: dict[Callable[[Facts], Failure | None], str] = {
    odd_message: "node_lost",  # the first trouble of the leader, which has ended all others for it
    stopped_in_order: "stopped",  # every worker has recorded it itself: no other cause is needed
    ended_for_a_hang: "hang",  # all that follows, tracebacks too, is its consequence
    stopped_by_signal: "signal",  # tracebacks of programs that are told to end are no failures
    failed_by_itself: "program",  # the rest is what others saw of it, or reported when they lost it
    collective_timed_out: "timeout",  # agents looked while ranks waited: the end is a consequence
    agent_refused: "refused",  # nothing started on that node, so the other nodes were ended
    node_gone: "node_lost",  # a scheduler ends all others before they can notice
    command_killed: "killed",  # its agent has seen it; other agents only lost that one
    disk_full: DISK_FULL,  # so what is missing below could perhaps not be written
    node_lost: "node_lost",  # no agent saw a command end: the cause is the node that all lost
    aborted_at_exit: "killed",  # when Python ended, after they had recorded that they are done
    ended_without_a_word: "killed",  # a rank that died, before one that was only late
    waited_for_in_vain: "timeout",  # ended by its agent, so it lived: it hung if others timed out
    never_started: "not_started",  # there is no other reason for its silence
    failed_though_done: "job",  # no worker failed: only the launching side's information is left
    stopped_in_part: "signal",  # some ranks have obeyed it, and the others lost them
    left_early: "left_early",  # the ranks that are done left the others waiting
    first_echo: "peer_lost",  # no record says more than that a rank lost another
}


def _timed_out(record: Mapping[str, Any]) -> bool:
    return bool(TIMED_OUT.search(record["message"]))


def _stopped(agent: Mapping[str, Any], own: Sequence[Mapping[str, Any]]) -> Failure:
    """Somebody ended the run; errors of programs after that are no failure, but worth a look."""
    name = signal_name(agent["code"] - 128)
    asked = agent["message"].endswith(f"was sent {name}")
    text = f"error: stopped by {name}" if asked else f"error: {agent['message']}"
    tracebacks = [one["traceback"].rstrip() for one in own if one["traceback"]]
    return Failure(agent["code"], text, tuple(tracebacks[:1]))


def _starved(agents: Iterable[Mapping[str, Any]]) -> str:
    """The nodes on which memory ran out, by the kernel; "" if there are none."""
    nodes = [one["node"] for one in agents if one.get("oom_kills")]
    return f"out of memory on {', '.join(nodes)}: the kernel killed it for that" if nodes else ""


def _perhaps_starved(nodes: str) -> str:
    """Where nobody has counted it: a way to find out, and no cause."""
    return f"the kernel may have ended it for lack of memory: see dmesg on {nodes}"


def _node_lost(message: str, silent: Sequence[int]) -> Failure:
    context = (f"{_ranks(silent)} ended without a message",) if silent else ()
    return Failure(1, _lines(message), context)


def _killed(facts: Facts, outputs: Mapping[int, Path], echoes: Collection[int]) -> Failure | None:
    if not outputs:
        return None
    also, node = _because_of_it(echoes), facts.node
    for rank, path in outputs.items():
        if crash := last_output.crash_of(path):  # for example an uncaught exception in C++
            on = f" on {node[rank]}" if rank in node else ""
            text = f"error: rank {rank}{on} died: {crash.why}"
            return Failure(crash.code, text, (*crash.dump, *also), rank)
    why = _starved(facts.agents)
    nodes = ", ".join(sorted({node[rank] for rank in outputs if rank in node}))
    on = f" on {nodes}" if nodes else ""
    text = f"{_ranks(outputs)} ended without a message{f' ({why})' if why else ''}{on}"
    if not why:
        also = (*also, _perhaps_starved(nodes or "its node"))
    first = min(outputs)
    return Failure(KILLED, f"error: {text}", also, first, output=_last_lines(facts, first))


def _because_of_it(echoes: Collection[int]) -> tuple[str, ...]:
    return (f"{_ranks(echoes)} stopped because of it",) if echoes else ()


def _ranks(ranks: Iterable[int]) -> str:
    names = [str(rank) for rank in sorted(ranks)]
    return f"{'rank' if len(names) == 1 else 'ranks'} {', '.join(names)}"


def _lines(message: str) -> str:
    return "\n".join(f"error: {line}" for line in message.splitlines())
