"""Explain in sentences why a run hangs; the first names the cause, as far as the ranks can tell.

How it works: a rank that waits in a collective waits for the members of its group that have not
begun that collective. Followed from rank to rank, these waits lead to ranks that wait for nobody.
These ranks are the cause, and the sentences describe what each of them is doing. Ranks that have
ended or were stopped come first, since others may be waiting for them in a way that no rank
records. If the waits lead to no such rank, ranks are waiting for each other because they entered
groups in different orders. If all ranks have begun the same collective and are still waiting, they
must disagree about its operation, shape or type. If no rank waits in a collective, the rank that is
in a different place from most ranks is named.

A slow rank is recognised by when it reaches collectives. All ranks leave a collective at about the
same time, once the last rank has reached it. A rank's own time runs from then until it reaches the
next collective, where it waits for the others. Step times do not help, since they are alike on all
ranks. Times from different nodes are converted to the clock of the run's leader, by the offsets
that agents have measured.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from statistics import median

from launch.agent.inspection.rank_view import RankView
from launch.agent.processes.process_state import COMPUTES, SLEEPS
from launch.deadlines import BRIEF_WAIT_S, CLOCKS_DIFFER_S
from launch.nodes.messages import Collective, Group, InitCall
from muster.printable import duration, listed

# Collectives whose shape is the same on every rank.
SAME_SHAPE = ("all_reduce", "allreduce", "broadcast", "reduce", "all_reduce_coalesced")
LEAST_COLLECTIVES = 10  # with fewer pairs of consecutive collectives, no rank counts as slow
SLOW_FACTOR = 1.25  # a rank is slow if its own time is longer than this times the median
CHILDREN_LISTED = 3  # the number of different activities of a rank's children
GIL_IS_HELD = "C code or similar is holding the GIL"
DOES = {COMPUTES: "is computing", SLEEPS: "is sleeping"}  # in sentences


def sentences(views: Mapping[int, RankView], lost: Mapping[str, str] | None = None) -> list[str]:
    """Explain what blocks the run, the cause first; `lost`: why a node does not answer, by name."""
    lines = [f"{node} does not answer: {why}" for node, why in (lost or {}).items()]
    if problem := _wrong_numbers(views):
        return [*lines, problem]
    blocked = _blocked(views)
    culprits = sorted(
        {rank for ranks in blocked.values() for rank in ranks} - set(blocked),
        key=lambda rank: (_can_come(views.get(rank)), rank),
    )
    waits = _waiting(views)
    causes: list[str] = []
    # If all ranks have begun the collective in which some wait, they disagree about it. Ranks that
    # wait for these ranks elsewhere are a consequence.
    if all(rank in waits for rank in culprits):
        causes = _disagreements(views, waits)
    if culprits and not causes:
        causes = [_not_come(views, rank, blocked, waits) for rank in culprits[:3]]
        if len(culprits) > 3:
            causes.append(f"the same is true of ranks {listed(culprits[3:])}")
    lines += causes or _circular_waits(views, waits, blocked)
    return lines or _slow_rank_lines(views) or _waits_in_init(views) or _without_collectives(views)


def _slow_rank_lines(views: Mapping[int, RankView]) -> list[str]:
    """A sentence for each rank that reaches collectives later than most, while the run goes on."""
    lines = []
    for group in dict.fromkeys(name for view in views.values() for name in view.groups):
        members = [views[rank] for rank in _members(views, group) if rank in views]
        slow = slow_ranks({view.rank: view.arrivals(group) for view in members})
        lines += [
            f"no rank is hanging, but rank {rank} on {views[rank].node} takes {times:.1f} times as "
            f"long as the median between collectives: it is {_location(views[rank])}"
            for rank, times in slow.items()
        ]
    return lines


def own_times(arrivals: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Average seconds that each rank has computed between collectives that all have reached.

    `arrivals`: for each rank, when it reached each collective, by the collective's number, in
    seconds on a common clock. The result is empty for fewer than `LEAST_COLLECTIVES` pairs of
    consecutive collectives.
    """
    if len(arrivals) < 2:
        return {}
    common = sorted(set.intersection(*(set(times) for times in arrivals.values())))
    pairs = [(k, k + 1) for k in common if k + 1 in common]
    if len(pairs) < LEAST_COLLECTIVES:
        return {}
    ended = {k: max(times[k] for times in arrivals.values()) for k in common}
    return {
        rank: sum(max(0.0, times[after] - ended[before]) for before, after in pairs) / len(pairs)
        for rank, times in arrivals.items()
    }


def slow_ranks(arrivals: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """Ranks whose own time is well above the median of all, each with its factor.

    It must exceed `SLOW_FACTOR` times the median, and the median by more than clocks may differ.
    """
    own = own_times(arrivals)
    usual = median(own.values()) if own else 0.0
    return {
        rank: seconds / max(usual, 1e-9)
        for rank, seconds in own.items()
        if seconds - usual > CLOCKS_DIFFER_S and seconds > SLOW_FACTOR * usual
    }


def _location(view: RankView) -> str:
    return f"in {view.user_frame}" if view.user_frame else "at an unknown place"


def _waiting(views: Mapping[int, RankView]) -> dict[int, Collective]:
    return {
        rank: view.waiting
        for rank, view in views.items()
        if view.waiting is not None and not view.ended
        if view.timed_out or view.waiting.age_s > BRIEF_WAIT_S
    }


def _blocked(views: Mapping[int, RankView]) -> dict[int, list[int]]:
    """For each waiting rank, the members of its group that have not begun its collective."""
    blocked = {}
    for rank, collective in _waiting(views).items():
        members = _members(views, collective.group)
        missing = [
            member
            for member in members
            if member != rank and _is_missing(views.get(member), collective)
        ]
        if missing:
            blocked[rank] = missing
    for rank, view in views.items():
        # a rank that gave up was waiting for the ranks that are still alive
        if view.timed_out and rank not in blocked:
            alive = [other for other, its_view in views.items() if not its_view.ended]
            blocked[rank] = [other for other in alive if other not in (rank, *blocked)]
    return blocked


def _can_come(view: RankView | None) -> bool:
    """Whether a rank has neither ended nor been stopped."""
    return view is not None and not view.is_over and not view.is_held


def _members(views: Mapping[int, RankView], group: str) -> Sequence[int]:
    lists = (view.groups[group].ranks for view in views.values() if group in view.groups)
    return next((ranks for ranks in lists if ranks), tuple(views))


def _is_missing(view: RankView | None, collective: Collective) -> bool:
    """Whether a rank has not begun this collective, unless it ended because another was gone."""
    if view is None:
        return True
    return (
        not view.lost_peer and view.groups.get(collective.group, Group()).begun < collective.number
    )


def _not_come(
    views: Mapping[int, RankView],
    rank: int,
    blocked: Mapping[int, Sequence[int]],
    waits: Mapping[int, Collective],
) -> str:
    waiting = sorted(waiter for waiter, others in blocked.items() if rank in others)
    first = next((waits[waiter] for waiter in waiting if waiter in waits), None)
    where = f" has not reached {first.name} of {group_name(first)}" if first else " is missing"
    view = views[rank]
    cause = f"rank {rank} on {view.node}{where}: {condition(view)}"
    limit_s = first.limit_s if first else 0.0
    # if a rank will never come, the line where the others wait is more useful than its own
    at = _at(views[waiting[0]]) if view.is_over or view.has_left else ""
    if first is None or any(views[waiter].timed_out for waiter in waiting):
        after = f" after {duration(limit_s)}" if limit_s else ""
        return f"{cause}; {_ranks(waiting)} timed out{after}{at}"
    left = f"{',' if at else ''} and will time out in {duration(limit_s - first.age_s)}"
    left = left if limit_s else ""
    return f"{cause}; {_ranks(waiting)} {_are(waiting)} waiting{at}{left}"


def condition(view: RankView) -> str:
    """Describe what one rank is doing: `it has been sleeping for 40 s in load_data, train.py:13`.

    If it waits: `it has been waiting for 40 s in all_reduce 4 [1000], in main, train.py:20`.
    """
    if view.ended:
        return f"it has ended: {view.ended}"
    if view.is_over:
        return "its process has ended"
    return "; ".join([_own_condition(view), *_conditions_of_children(view)])


def _conditions_of_children(view: RankView) -> Iterator[str]:
    """Describe its program's child processes, with one text for all that do the same."""
    alike: dict[str, list[int]] = {}
    for child in view.children:
        alike.setdefault(DOES.get(child.words, child.words), []).append(child.pid)
    for words, pids in [*alike.items()][:CHILDREN_LISTED]:
        which = f"each of its child processes {listed(pids)}"
        yield f"{which if pids[1:] else f'its child process {pids[0]}'} {words}"
    if more := sum(map(len, [*alike.values()][CHILDREN_LISTED:])):
        yield f"and {more} more child process{'es' if more > 1 else ''}"


def _own_condition(view: RankView) -> str:
    place = f"in {view.user_frame}" if view.user_frame else ""
    does = DOES.get(view.words, view.words)
    if view.is_held:
        return f"it {does}{f', {place}' if place else ''}"
    if view.imports:
        return "it is importing its modules"
    if not view.answers:
        if view.is_command:
            return f"it {does}; where is not known, since it is not a Python program"
        if not place:
            return f"it does not answer and {does}: it is starting, or {GIL_IS_HELD}"
        return f"it {does} while {GIL_IS_HELD}, called {place}"
    since = f" for {duration(view.for_s)}" if view.for_s is not None else ""
    if view.has_left:
        ago = f" {duration(view.for_s)} ago" if view.for_s is not None else ""
        return f"it left muster.init(){ago}{_at(view)}"
    if (collective := view.waiting) is not None:
        group = "" if collective.group == "0" else f" of {group_name(collective)}"
        which = f"{collective.name} {collective.shape}".rstrip()
        return f"it {'has been' if since else 'is'} waiting{since} in {which}{group}{_at(view)}"
    has_done = does.replace("is ", "has been ", 1) if since else does
    return f"it {has_done}{since} {place or 'at an unknown place'}"


def _disagreements(views: Mapping[int, RankView], waits: Mapping[int, Collective]) -> list[str]:
    """Collectives that all ranks have begun, but with different operations, shapes or types."""
    lines = []
    for group in dict.fromkeys(collective.group for collective in waits.values()):
        number = min(
            collective.number for collective in waits.values() if collective.group == group
        )
        kinds: dict[str, list[int]] = {}
        for rank in sorted(views.keys() & {*_members(views, group)}):
            for collective in views[rank].collectives:
                if (collective.group, collective.number) == (group, number):
                    kinds.setdefault(_kind(collective), []).append(rank)
        if len(kinds) > 1:
            each = "; ".join(
                f"{_ranks(ranks)}: {kind}{_at(views[ranks[0]])}" for kind, ranks in kinds.items()
            )
            sample = next(collective for collective in waits.values() if collective.group == group)
            lines.append(
                f"ranks disagree about collective {number} of {group_name(sample)}: {each}"
            )
    return lines


def _circular_waits(
    views: Mapping[int, RankView],
    waits: Mapping[int, Collective],
    blocked: Mapping[int, Sequence[int]],
) -> list[str]:
    """Name ranks that wait for each other, without ranks that only wait for one of them."""
    cycle = {rank: list(others) for rank, others in blocked.items() if rank in waits}
    while loose := set(cycle) - {other for others in cycle.values() for other in others}:
        cycle = {rank: others for rank, others in cycle.items() if rank not in loose}
    if not cycle:
        return []
    each = "; ".join(
        f"rank {rank} is in {waits[rank].name} of {group_name(waits[rank])}{_at(views[rank])}"
        f" and is waiting for {_ranks(cycle[rank])}"
        for rank in sorted(cycle)[:4]
    )
    return [f"ranks are waiting for each other, as they enter groups in different orders: {each}"]


def _waits_in_init(views: Mapping[int, RankView]) -> list[str]:
    """Explain why ranks with correct numbers do not return from `init_process_group`."""
    calls = _init_calls(views)
    if not calls:
        return []
    waiting = _waiting_in_init(views, list(calls))
    absent = [view for view in views.values() if view.init_call is None and not view.groups]
    if unserved := _unserved_store(calls.values(), absent, all_wait=len(calls) == len(views)):
        return [f"{waiting}, {unserved}"]
    absences = [
        f"rank {view.rank} on {view.node} has not reached init_process_group: {condition(view)}"
        for view in absent[:3]
    ]
    return [f"{absences[0]}; {waiting}", *absences[1:]] if absences else []


def _unserved_store(
    calls: Collection[InitCall], absent: Iterable[RankView], *, all_wait: bool
) -> str:
    """Name the store that these calls wait for but nobody will serve, with advice; or return ""."""
    stores = {call.store: call.method for call in calls if call.store}
    if not stores or any(call.serves for call in calls):
        return ""
    by_launcher = any(call.by_launcher for call in calls)
    if not by_launcher and any(view.rank == 0 for view in absent):
        return ""  # rank 0 will serve it
    own_method = next((method for method in stores.values() if method.startswith("tcp:")), None)
    if own_method is None and not all_wait:
        return ""  # the ranks that have not come are the cause
    advice = "rank 0 or torchrun serves it only at the given MASTER_ADDR:MASTER_PORT"
    if own_method is not None and by_launcher:
        advice = (
            f"under torchrun no rank serves the store of init_method={own_method!r}; "
            "leave init_method out, or use --workers manual"
        )
    return f"for a store at {' and '.join(stores)}, which no process serves: {advice}"


def _init_calls(views: Mapping[int, RankView]) -> dict[int, InitCall]:
    """The `init_process_group` calls in which ranks have been waiting for a while, or gave up."""
    return {
        rank: view.init_call
        for rank, view in views.items()
        if view.init_call is not None and not view.ended
        if view.timed_out or (view.for_s or 0) > BRIEF_WAIT_S
    }


def _waiting_in_init(views: Mapping[int, RankView], ranks: Sequence[int]) -> str:
    where = _at(views[ranks[0]])
    return f"{_ranks(ranks)} {_are(ranks)} waiting in init_process_group{where}"


def _wrong_numbers(views: Mapping[int, RankView]) -> str:
    """Explain why calls of `init_process_group` cannot form a group together; or return ""."""
    calls = _init_calls(views)
    if not calls:
        return ""
    waiting = _waiting_in_init(views, list(calls))
    holders: dict[int, int] = {}  # for each number, the first rank that passed it
    sizes: dict[int, int] = {}  # the same for each world size, also that of an existing group
    for rank, view in views.items():
        call = calls.get(rank)
        size = call.world_size if call else len(view.groups.get("0", Group()).ranks)
        sizes.setdefault(size or 0, rank)
        if call is None or call.rank is None:
            continue
        if (holder := holders.setdefault(call.rank, rank)) != rank:
            both = f"{_process(views[holder])} and {_process(view)} both"
            return f"{waiting}: {both} call it with rank={call.rank}; each needs its own RANK"
    sizes.pop(0, None)  # not known
    if len(sizes) > 1:
        each = ", ".join(f"{_process(views[rank])} has {size}" for size, rank in sizes.items())
        return f"{waiting}: world sizes differ: {each}; all need the same WORLD_SIZE"
    if (most := max(sizes, default=0)) > len(views):
        wanted = f"{most} ranks (world_size={most})"
        return f"{waiting} for {wanted}, but the run has {len(views)}"
    return ""


def _process(view: RankView) -> str:
    pid = "" if view.pid is None else f" (pid {view.pid})"
    return f"rank {view.rank} on {view.node}{pid}"


def _without_collectives(views: Mapping[int, RankView]) -> list[str]:
    """If no rank waits in a collective, name ranks that are held, or not where most ranks are."""
    if views and all(view.imports for view in views.values()):
        return ["all ranks are importing their modules"]
    lines = [
        f"rank {rank} on {view.node}: {condition(view)}"
        for rank, view in views.items()
        if view.is_held or (not view.answers and not view.ended and not view.is_command)
    ]
    if lines:
        return lines
    places = Counter(_function(view) for view in views.values() if view.user_frame)
    ended = [view for view in views.values() if view.ended]
    going_on = [
        view for view in views.values() if not view.ended and (view.for_s or 0) > BRIEF_WAIT_S
    ]
    if ended and going_on:
        first = going_on[0]
        names = _ranks([view.rank for view in ended])
        return [
            f"rank {first.rank} on {first.node} is running without {names}: {condition(first)}",
            *(f"rank {view.rank} on {view.node}: {condition(view)}" for view in ended[:3]),
        ]
    if len(places) > 1:
        usual, count = places.most_common(1)[0]
        odd = [view for view in views.values() if view.user_frame and _function(view) != usual]
        odd = [view for view in odd if (view.for_s or 0) > BRIEF_WAIT_S]
        if count > len(views) / 2 and odd:
            lines = [f"rank {view.rank} on {view.node}: {condition(view)}" for view in odd[:3]]
            rest = [view for view in views.values() if _function(view) == usual]
            lines.append(f"{_ranks([view.rank for view in rest])}: {condition(rest[0])}")
            return lines
    still = [view for view in views.values() if (view.for_s or 0) > BRIEF_WAIT_S]
    if still and len(places) == 1:
        return [f"all ranks are in the same function; rank {still[0].rank}: {condition(still[0])}"]
    return ["no rank has been waiting long in a collective"]


def _function(view: RankView) -> tuple[str, str]:
    return (view.user_frame.file, view.user_frame.function) if view.user_frame else ("", "")


def _kind(collective: Collective) -> str:
    if collective.operation not in SAME_SHAPE:
        return collective.operation
    return f"{collective.operation} {collective.shape} {'/'.join(collective.types)}".strip()


def _at(view: RankView) -> str:
    return f", in {view.user_frame}" if view.user_frame else ""


def group_name(collective: Collective) -> str:
    """The name of a group: `the default group`, or `group 1 (pair)`."""
    if collective.description in ("default_pg", "") and collective.group in ("0", ""):
        return "the default group"
    has_description = collective.description not in ("", "undefined")
    description = f" ({collective.description})" if has_description else ""
    return f"group {collective.group}{description}"


def _are(ranks: Sequence[int]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"
