"""What a failed run prints: the cause of the failure, and details from the run folder.

The leader of a run has chosen the cause from the ends that its agents reported: an `End`, see
launch/ends.py. `explain` adds details from the run folder: a traceback, the last lines that the
rank printed, where other ranks waited, and which of them stopped because of it. If the leader is
gone, or another process reads the records, the same rule is applied to the ends in the records.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from launch.ends import (
    ENDED_WELL,
    OUT_OF_MEMORY,
    OWN_CAUSES,
    End,
    Kind,
    cause_of,
    named,
)
from launch.nodes.messages import Frame
from launch.runs import last_output
from launch.runs.end_facts import EndFacts, ends_on_disk, stacks_seen
from launch.runs.run_record import end_record, folder_line, output_lines
from muster.errors import STOPPED, is_full
from muster.run_files import (
    AGENT_ERRORS,
    AGENT_LOG,
    ERRORS,
    EXIT,
    SNAPSHOT,
    SNAPSHOT_RECORD,
    SUBMITIT,
)
from muster.worker.lost_peer import HAS_LEFT
from muster.writing import full_disk

# A message of torch, Python, the kernel or Slurm, in a line outside a traceback's frames.
MEMORY = re.compile(
    r"^(?=\S).*?(out of memory|MemoryError|can't allocate memory|OUT_OF_MEMORY)", re.M | re.I
)
NO_CUDA = "Torch not compiled with CUDA enabled"
C10D = "torch/distributed/distributed_c10d.py"  # the file of torch's collectives
NO_NCCL = "Distributed package doesn't have NCCL built in"
TRACED = re.compile(r'^  File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<function>.*)$', re.M)
RANK = re.compile(r"\brank (\d+) on ")
CAUSE_LINES = 10  # the rank's output has longer tracebacks in full
MISSING = re.compile(r"No such file or directory: '([^']*)'")
BRIEF = 300  # how many characters of an exception's text are in `Failure.brief`
FULL = re.compile(r"No space left|the disk is full")  # the kernel's message, and Muster's


@dataclass(frozen=True)
class Failure:
    """The exit code of a failed run, and what to print about it."""

    code: int
    text: str  # the cause, in the original words: printed last
    context: tuple[str, ...] = ()  # lines to print before `text`
    rank: int | None = None  # the rank that failed first, if it was a rank
    cause: str = ""  # one word: see docs/automation.md
    brief: str = ""  # one line for a traceback, instead of `text` and `context`'s last line
    output: str = ""  # the last lines that a rank without a traceback printed
    end: End | None = None  # the end that `text` is about


def explain(
    run_dir: Path, world_size: int | None, code: int = 0, cause: End | None = None
) -> Failure | None:
    """Explain why a run failed whose processes have all ended; None if every rank is done.

    `code` comes from the launching side, and `cause` from the run's leader.
    """
    facts = EndFacts(run_dir, world_size)
    if len(facts.done_ranks) == facts.world_size and not code:
        return None
    if cause is None or cause.is_of_scheduler:  # then the records of agents and ranks may show more
        cause = _on_disk(facts, cause)
    failure = _stopped_in_order(facts, cause) or PRINTED.get(cause.kind, _text_alone)(facts, cause)
    word = failure.cause or cause.kind.word
    if MEMORY.search(failure.text):
        word = OUT_OF_MEMORY
    elif FULL.search(failure.text) and (facts.full_disks or cause.kind is Kind.REFUSED):
        word = Kind.FULL.word
    return replace(
        failure,
        code=failure.code % 256 or code or 1,  # never 0, even if a record says so
        cause=word,
        context=(*facts.unreadable, *failure.context),
        end=cause,
    )


def failure_of(run_dir: Path, world_size: int | None, record: Mapping[str, Any]) -> Failure | None:
    """The failure in the record of a run's end; None if the run ended well.

    The leader of a scheduler's job has written the record, or `unrecorded_end` has made it.
    """
    code = record["code"]
    if not code:
        return None
    end = End.from_json(record.get("end"))
    is_of_job = end is not None and end.is_of_scheduler  # the ranks' records may show less
    failure = None if end is None or is_of_job else explain(run_dir, world_size, code, end)
    if failure is None:
        context = _jobs_output(run_dir) if is_of_job else ()
        own = {name: record.get(name) for name in ("rank", "cause", "output")}
        output = own["output"] or ""
        failure = Failure(code, "", context, own["rank"], own["cause"] or "", output=output)
    return replace(failure, code=code, text=record["message"])


def end_record_of(failure: Failure) -> dict[str, Any]:
    """The record of this failure as the end of its run, so that no reader has to infer it again."""
    end = failure.end
    return end_record(
        failure.code,
        failure.text,
        failure.rank,
        failure.cause,
        failure.output,
        None if end is None else with_fields(end, traceback="").to_json(),
        end.text if end is not None and end.rank == failure.rank else "",
    )


def _on_disk(facts: EndFacts, of_job: End | None) -> End:
    """The cause according to the records alone, for a process that has not led the run."""
    ends = ends_on_disk(facts)
    ends += [of_job] if of_job is not None else []
    cause = cause_of(ends, facts.nodes)
    if cause is None or cause.kind.can_be_consequence:
        ends += _aborted_at_exit(facts)
    if cause is None or cause.kind.can_be_consequence or cause.lacks_reason:
        full = [*facts.full_disks]
        if of_job is None:  # a process that looks at a run later writes nothing into its folder
            full.append(full_disk(EXIT.path(facts.run_dir)))
        ends += [End(Kind.FULL, "", 0.0, message=line) for line in full[:1] if line]
    cause = cause_of(ends, facts.nodes) or End(Kind.JOB, "", 0.0, message="no record shows why")
    if cause.kind is Kind.NOT_STARTED and not cause.node:  # no record says why
        reasons = [end.text for end in ends if end.kind in (Kind.JOB, Kind.FAILED)]
        cause = with_fields(cause, message=", ".join(reasons[-1:]) or cause.message)
    return cause


def _aborted_at_exit(facts: EndFacts) -> Iterator[End]:
    """Ends of ranks that died while Python exited, after they had recorded that they were done."""
    for rank in facts.done_ranks:
        if crash := last_output.crash_of(ERRORS.path(facts.run_dir, rank=rank)):
            node = facts.node_of[rank]
            time_unix_s = facts.exits[rank]["time_unix_s"]
            number = crash.code - 128
            yield End(Kind.KILLED, node, time_unix_s, rank, signal=number, message=ENDED_WELL)


def report(
    failure: Failure, run_dir: Path, output_tail: bytes = b"", attempt_number: int | None = None
) -> str:
    """The text to print about a failure: its cause, the end of the rank's output, and its place.

    The text is empty if all of it was printed before, as after a clean stop.

    `output_tail`: the end of the output that was already printed, whose lines are not repeated.
    `attempt_number`: from 1, if other attempts may follow.
    """
    printed = set(last_output.lines_of(output_tail))
    text = last_output.lines_of(failure.text.encode(errors="backslashreplace"))
    cause = [*failure.context, _shortened(failure.text)]
    if printed.issuperset(text):
        if failure.rank is None and not failure.context:
            return ""
        cause = [*failure.context]
        if failure.brief:  # `brief` begins with the last line of the context
            cause[-1:] = [failure.brief]
    output = "" if printed.issuperset(failure.output.splitlines()) else failure.output
    place = output_lines(run_dir, failure.rank, output, attempt_number)
    return "\n".join([folder_line(run_dir), *cause, *place])


def _shortened(text: str) -> str:
    """The text; if it is long, only its first line and its last lines."""
    lines = text.splitlines()
    left_out = len(lines) - CAUSE_LINES + 1
    if left_out <= 1:
        return text
    return "\n".join([lines[0], f"  ... ({left_out} lines)", *lines[left_out + 1 :]])


def _stopped_in_order(facts: EndFacts, cause: End) -> Failure | None:
    """What to print if every worker recorded a clean stop, else None.

    A signal to a run that stopped like this is not a failure.
    """
    reasons = [end["message"] for end in facts.exits.values() if end["cause"] == "stopped"]
    if not reasons or len(reasons) != facts.world_size:
        return None
    if cause.kind.state == Kind.STOPPED.state:
        return Failure(STOPPED, reasons[0], cause=Kind.STOPPED.word)
    return Failure(cause.exit_code, _lines(cause.text), (reasons[0],))


def _text_alone(facts: EndFacts, cause: End) -> Failure:
    return Failure(cause.exit_code, _lines(cause.text))


def _program(facts: EndFacts, cause: End) -> Failure:
    """A program that raised an error, refused its input, or ended itself."""
    record = facts.exits.get(cause.rank) if cause.rank is not None else None
    # the traceback in `cause` may be shortened
    if traceback := record["traceback"] if record else cause.traceback:
        return _raised(facts, cause, traceback)
    if record is None or record["cause"] not in ("crash", "refused"):
        return _exited(facts, cause)
    alike = _failed_alike(facts, cause)
    return Failure(cause.exit_code, _lines(cause.message), alike, cause.rank)


def _raised(facts: EndFacts, cause: End, traceback: str) -> Failure:
    alike = _failed_alike(facts, cause)
    clock = time.strftime("%H:%M:%S", time.localtime(cause.time_unix_s))
    how = f"failed first, at {clock}, and stopped the others"
    if facts.world_size == 1 or alike:
        how = f"failed at {clock}"
    head = f"error: rank {cause.rank} on {cause.node} {how}:"
    context = (*alike, *_advice(facts.run_dir, cause), head)
    lines = [traceback.rstrip()]
    if is_full(RuntimeError(cause.message)):  # an error of print() names no file
        lines += map(_lines, facts.full_disks[:1])
    brief = _brief(context, cause)
    return Failure(cause.exit_code, "\n".join(lines), context, cause.rank, brief=brief)


def _exited(facts: EndFacts, cause: End) -> Failure:
    """A rank without a traceback: its last lines may show the reason."""
    if cause.rank in facts.never_started:  # it has no output of its own
        failure = _never_started(facts, cause)
        return replace(failure, code=cause.exit_code, cause=Kind.NOT_STARTED.word)
    output = _last_lines(facts, cause.rank)
    for printed in (f"error: {cause.message}", cause.message):  # sys.exit("no data") prints it
        output = f"\n{output}".removesuffix(f"\n{printed}").strip("\n")
    alike = _failed_alike(facts, cause)
    return Failure(cause.exit_code, _lines(cause.text), alike, cause.rank, output=output)


def _failed_alike(facts: EndFacts, cause: End) -> tuple[str, ...]:
    ranks = sorted(
        rank
        for rank, end in facts.exits.items()
        if end["message"] == cause.message and end["cause"] in OWN_CAUSES and rank != cause.rank
    )
    return (f"{named(ranks)} failed in the same way",) if ranks else ()


def _killed(facts: EndFacts, cause: End) -> Failure:
    """A rank, or the starter of a node's ranks, that was killed by a signal."""
    because = _others_stopped(set(facts.exits) - {cause.rank} - set(cause.ranks))
    ranks = cause.ranks if cause.rank is None else (cause.rank,)
    dump: tuple[str, ...] = ()
    text = cause.text
    for rank in ranks:  # a killed rank may have printed its stacks
        if crash := last_output.crash_of(ERRORS.path(facts.run_dir, rank=rank)):
            dump = crash.dump
            why = f"; {cause.message}" if cause.rank is not None and cause.message else ""
            text = f"rank {rank} on {cause.node} died: {crash.why}{why}"
    context = [*dump, *because]
    if cause.signal == signal.SIGKILL and not (cause.rank is not None and cause.message):
        agents = [agent for agent in facts.agent_ends if agent["node"] == cause.node]
        if why := _out_of_memory(agents):
            text = f"{text}; {why}"
        else:
            context.append(_perhaps_out_of_memory(cause.node))
    output = "" if dump else _last_lines(facts, cause.rank)
    return Failure(cause.exit_code, f"error: {text}", tuple(context), cause.rank, output=output)


def _unrecorded(facts: EndFacts, cause: End) -> Failure:
    """Ranks without a record: their agents ended them, or how they ended is unknown."""
    if cause.was_ended:
        return _waited_for_in_vain(facts, cause)
    context = _others_stopped(facts.exits)
    ranks = sorted({*facts.vanished, cause.rank or 0})
    for rank in ranks:
        path = ERRORS.path(facts.run_dir, rank=rank)
        if crash := last_output.crash_of(path):  # for example, an uncaught C++ exception
            place = f" on {facts.node_of[rank]}" if rank in facts.node_of else ""
            text = f"error: rank {rank}{place} died: {crash.why}"
            return Failure(crash.code, text, (*crash.dump, *context), rank)
    nodes = ", ".join(sorted({facts.node_of[rank] for rank in ranks if rank in facts.node_of}))
    place = f" on {nodes}" if nodes else ""
    why = _out_of_memory(facts.agent_ends)
    text = f"error: {named(ranks)} ended without a message{f' ({why})' if why else ''}{place}"
    if not why:
        context = (*context, _perhaps_out_of_memory(nodes or "its node"))
    return Failure(last_output.KILLED, text, context, ranks[0], output=_last_lines(facts, ranks[0]))


def _lost_node(facts: EndFacts, cause: End) -> Failure:
    context = (
        (f"{named(facts.silent_ranks)} ended without a message",) if facts.silent_ranks else ()
    )
    return Failure(1, _lines(cause.text), context, cause=Kind.NODE_LOST.word)


def _signalled_run(facts: EndFacts, cause: End) -> Failure:
    """A signal to the run, or to one node; a traceback that followed it is also printed."""
    if cause.was_signalled and cause.node:
        return _lost_node(facts, cause)
    tracebacks = [end["traceback"].rstrip() for end in facts.exits.values() if end["traceback"]]
    return Failure(cause.exit_code, f"error: {cause.text}", tuple(tracebacks[:1]))


def _hang(facts: EndFacts, cause: End) -> Failure:
    seen = stacks_seen(facts.run_dir, "hang").get("sentences", ())
    return Failure(cause.exit_code, f"error: {cause.text}", tuple(seen[1:]))


def _collective_timed_out(facts: EndFacts, cause: End) -> Failure:
    seen = stacks_seen(facts.run_dir, "timeout")
    # All waiting ranks may have been ended before they wrote their records. Then the inspection
    # has their messages.
    waited = [(end.rank, end.message) for end in _timed_out(facts)]
    reports = [report for report in seen.get("reports", ()) if report.get("gave_up")]
    waited += [(report["rank"], report["gave_up"]["message"]) for report in reports]
    how = [f"rank {rank}: {message}"[:300] for rank, message in waited[:1]]
    more = seen.get("sentences", ())[1:]
    table = f"to see what each rank did: muster jobs stacks {facts.run_dir.name}"
    return Failure(1, f"error: {cause.text}", (*how, *more, table))


def _timed_out(facts: EndFacts) -> list[End]:
    """The ranks that waited for others in vain, the earliest first."""
    waited = [end for end in ends_on_disk(facts) if end.waited_in_vain]
    return sorted(waited, key=lambda end: end.time_unix_s)


def _waited_for_in_vain(facts: EndFacts, cause: End) -> Failure:
    """Ranks that stayed alive until their agents ended them, while others timed out."""
    ended = (end for end in ends_on_disk(facts) if end.was_ended)
    late_ends = [end for end in ended if end.kind is cause.kind]
    late_ends = sorted(late_ends or [cause], key=lambda end: end.rank or 0)
    waited = _timed_out(facts)
    waiting = named(end.rank for end in waited if end.rank is not None)
    pronoun = "it" if len(late_ends) == 1 else "them"
    reasons = "; ".join(
        end.text if end.kind is Kind.UNRECORDED else _busy_text(end) for end in late_ends
    )
    text = f"error: {reasons}: {waiting} waited for {pronoun} and timed out (after --timeout-s)"
    seen = stacks_seen(facts.run_dir, "end").get("sentences", ())
    how = [f"{waiting}: {end.message}" for end in waited[:1]]
    return Failure(1, text, (*how, *seen), cause=Kind.TIMEOUT.word)


def _busy_text(end: End) -> str:
    return f"rank {end.rank} on {end.node} was busy elsewhere"


def _never_started(facts: EndFacts, cause: End) -> Failure:
    """Workers that failed before they had files of their own; their agent's log has the reason."""
    ranks = facts.never_started or cause.ranks
    # the oldest log is first: the agent that wrote it was not stopped by other agents
    logs = [*AGENT_LOG.find(facts.run_dir), *AGENT_ERRORS.find(facts.run_dir)]
    logs.sort(key=lambda log: log.stat().st_mtime_ns)
    if printed := last_output.last_log_lines(logs):
        log, text = printed
        context = f"error: {named(ranks)} failed before starting; {log} ends with:"
        return Failure(1, text, (context,))
    why = cause.text or "and no log shows why"
    output = _jobs_output(facts.run_dir)
    last = f": {output[-1].splitlines()[-1]}" if output else ""
    return Failure(1, f"error: {named(ranks)} never started: {why}{last}", output)


def _jobs_output(run_dir: Path) -> tuple[str, ...]:
    """The end of the output of the run's job, such as why it could not lead the run."""
    logs = sorted(SUBMITIT.path(run_dir).glob("*.out"), key=lambda log: log.stat().st_mtime_ns)
    printed = last_output.last_log_lines(logs[-1:])
    return () if printed is None else (f"{printed[0]} ends with:", printed[1])


def _left_early(facts: EndFacts, cause: End) -> Failure:
    """Some ranks ended well, and others failed in a collective that needed them."""
    done = facts.done_ranks or [cause.rank or 0]
    nodes = ", ".join(sorted({facts.node_of.get(rank, cause.node) for rank in done}))
    text = (
        f"error: {named(done)} on {nodes} ended with exit code 0 while others were in a "
        "collective; all ranks must leave the loop at the same step"
    )
    if waits := _waits(facts):
        they = "they" if done[1:] else "it"
        text = f"error: {waits}, but {named(done)} never got there: {they} ended with exit code 0"
        text = f"{text} on {nodes}"
    return Failure(1, text, rank=min(done))  # the other ranks' errors add nothing


def _waits(facts: EndFacts) -> str:
    """Where ranks that lost another one were: `ranks 1, 2 were waiting in barrier, train.py:20`."""
    places: dict[str, list[int]] = {}
    for rank, end in sorted(facts.exits.items()):
        lines = end["traceback"].partition("\n\n")[0]  # in a chain, the first error is torch's
        frames = [
            Frame(match["file"], int(match["line"]), match["function"])
            for match in TRACED.finditer(lines)
        ]
        place = last_output.innermost_user_frame(frames, facts.muster_of.get(rank, ""))
        if end["cause"] == "lost_peer" and place is not None and any(map(_is_of_torch, frames)):
            inside = (frame.function for frame in frames if frame.file.endswith(C10D))
            places.setdefault(f"{next(inside, 'a collective')}, {place}", []).append(rank)
    each = (
        f"{named(ranks)} {'were' if ranks[1:] else 'was'} waiting in {place}"
        for place, ranks in places.items()
    )
    return " and ".join(each)


def _is_of_torch(frame: Frame) -> bool:
    return "/torch/" in frame.file


def _lost_peer(facts: EndFacts, cause: End) -> Failure:
    """A rank lost the connection to another one, or was sent a signal; no record shows more."""
    if cause.was_ended and _timed_out(facts):  # by its agent, since others waited for it in vain
        return _waited_for_in_vain(facts, cause)
    left = [end["message"] for end in facts.exits.values() if HAS_LEFT in end["message"]]
    if left:
        ranks = sorted({int(rank) for rank in RANK.findall(left[0].partition(HAS_LEFT)[0])})
        nodes = ", ".join(sorted({facts.node_of[rank] for rank in ranks if rank in facts.node_of}))
        how = f"{named(ranks)} on {nodes} left muster.init()"
        waits = _waits(facts) or "others were in a collective"
        text = f"error: {how} while {waits}; all ranks must leave it at the same step"
        return Failure(cause.exit_code, text, rank=min(ranks))
    if not cause.traceback:
        return Failure(cause.exit_code, _lines(cause.text), rank=cause.rank)
    context = (f"error: rank {cause.rank} on {cause.node} lost another worker:",)
    text = cause.traceback.rstrip()
    brief = _brief(context, cause)
    return Failure(cause.exit_code, text, context, cause.rank, brief=brief)


# What the run folder adds to the sentences of `OUTCOMES`; for other kinds, it adds nothing.
PRINTED: dict[Kind, Callable[[EndFacts, End], Failure]] = {
    Kind.PROGRAM: _program,
    Kind.KILLED: _killed,
    Kind.UNRECORDED: _unrecorded,
    Kind.NODE_LOST: _lost_node,
    Kind.SIGNAL: _signalled_run,
    Kind.HANG: _hang,
    Kind.TIMEOUT: _collective_timed_out,
    Kind.NOT_STARTED: _never_started,
    Kind.DONE: _left_early,
    Kind.LOST_PEER: _lost_peer,
}


def _advice(run_dir: Path, cause: End) -> Iterator[str]:
    """Hints about the Python and the folder of the program, which a traceback does not show."""
    if NO_CUDA in cause.message:
        yield (
            f"this Python's torch on {cause.node} is built for CPUs only; choose another Python "
            "with --python"
        )
    if NO_NCCL in cause.message:
        yield (
            f"this Python's torch on {cause.node} was built without NCCL, like all CPU builds; use "
            "the backend gloo, or choose another Python with --python"
        )
    missing = MISSING.search(cause.message)
    if missing is None or not SNAPSHOT_RECORD.path(run_dir).is_file():
        return
    path = missing[1]
    copy = SNAPSHOT.path(run_dir.absolute())
    place = Path(os.path.normpath(copy / path))
    is_beside = ".." in Path(path).parts or place.is_relative_to(run_dir.absolute())
    if is_beside and not place.is_relative_to(copy):
        yield (
            f"the program ran in a copy of its project, {copy}, where a path outside the project, "
            f"such as {path}, is not valid; give the absolute path, or use --no-snapshot"
        )


def _brief(context: Sequence[str], cause: End) -> str:
    """A line that replaces a traceback printed before: its introduction and its message."""
    message = cause.message
    cut = f"{message[:BRIEF]} ..." if len(message) > BRIEF else message
    return f"{context[-1]} {cut}"


def _last_lines(facts: EndFacts, rank: int | None) -> str:
    return "" if rank is None else last_output.end_of(facts.run_dir, rank)


def _out_of_memory(agents: Iterable[Mapping[str, Any]]) -> str:
    """A phrase with the nodes where the kernel killed a process for lack of memory, if any."""
    nodes = [agent["node"] for agent in agents if agent.get("oom_kills")]
    return f"out of memory on {', '.join(nodes)}: the kernel killed it" if nodes else ""


def _perhaps_out_of_memory(nodes: str) -> str:
    """A hint, not a cause, for nodes where the processes that the kernel kills are not counted."""
    return f"the kernel may have killed it because memory ran out: see dmesg on {nodes}"


def _others_stopped(others: Collection[int]) -> tuple[str, ...]:
    return (f"this stopped {named(others)}",) if others else ()


def _lines(message: str) -> str:
    return "\n".join(f"error: {line}" for line in message.splitlines())
