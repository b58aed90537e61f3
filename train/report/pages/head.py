"""The first lines of a report: what ran, when, for how long, at which commit, and on what."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train.report.data.columns import Entry
from train.report.data.reader import Row, numbers
from train.report.data.subject import Subject
from train.report.pages import provenance
from train.report.pages.drawing import link_rate

MINUTE_S, HOUR_S = 60, 3600


def facts(subject: Subject) -> list[str]:
    """What ran and whether it is done, when, for how long, and at which commit and torch."""
    versions = {row["name"]: row["version"] for row in provenance.versions(subject)}
    commit = ", ".join(
        commit[:8] + commit[12:] for commit in versions.get("commit", "?").split(", ")
    )
    every = [
        _tasks_and_data(subject),
        states(subject),
        _when(subject.entries),
        f"commit {commit}" if not commit.startswith("?") else "",
        f"torch {versions['torch']}" if "torch" in versions else "",
    ]
    return list(filter(None, every))


def _tasks_and_data(subject: Subject) -> str:
    """The tasks and their data; for a single run, also its mode and workers."""
    entries = subject.entries
    tasks = sorted({str(entry.settings.get("task")) for entry in entries} - {"None"})
    paths = filter(None, (entry.run.config.get("data_dir") for entry in entries))
    data = sorted({Path(str(path)).name for path in paths})
    what = ", ".join(tasks) + (f" (--data-dir {', '.join(data)})" if data and tasks else "")
    if len(entries) != 1 or entries[0].run.is_foreign:
        return what
    workers = entries[0].workers
    mode = entries[0].settings.get("sync")
    return ", ".join(str(part) for part in (what, mode, several(workers, "worker")) if part)


def states(subject: Subject) -> str:
    """How many runs are done, and how the others ended or that they are waiting."""
    found = [*(entry.run.state for entry in subject.entries), *subject.without_run]
    if len(found) == 1:
        return found[0]
    others = [f"{found.count(state)} {state}" for state in dict.fromkeys(found) if state != "done"]
    return ", ".join([f"{found.count('done')} of {len(found)} runs done", *others]) if found else ""


def _when(entries: Iterable[Entry]) -> str:
    """When the first run began and the last one ended, and how long all of them took together."""
    spans = [found for entry in entries if (found := span_of(entry))]
    if not spans:
        return ""
    first = datetime.fromtimestamp(min(begin for begin, _ in spans), UTC)
    last = datetime.fromtimestamp(max(end for _, end in spans), UTC)
    until = "" if last.date() == first.date() else f" to {last:%Y-%m-%d %H:%M}"
    took = rough_duration(sum(end - begin for begin, end in spans))
    return f"{first:%Y-%m-%d %H:%M}{until} UTC, {took}{' of runs' if len(spans) > 1 else ''}"


def span_of(entry: Entry) -> tuple[float, float] | None:
    """When a run began and ended, in seconds since 1970; None if this is not on record."""
    run = entry.run
    begins = numbers([run.job.get("started_unix_s")])
    ends = numbers([run.end.get("time_unix_s"), *(end.get("time_unix_s") for end in run.exits)])
    if not begins or not ends or max(ends) < begins[0] or not 0 <= begins[0] <= max(ends) < 1e11:
        return None
    return begins[0], max(ends)


def ended_at(subject: Subject) -> str:
    """When the last run ended, in the format of document metadata; "" if this is unknown."""
    ends = [found[1] for entry in subject.entries if (found := span_of(entry))]
    return datetime.fromtimestamp(max(ends), UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if ends else ""


def rough_duration(seconds: float) -> str:
    """A duration as people say it: 48 s, 12 min, 3 h 5 min."""
    if seconds < 2 * MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    hours, rest = divmod(round(seconds / MINUTE_S), 60)
    return f"{hours} h {rest} min"


def measured(subject: Subject) -> str:
    """Sentences on the machines, the nodes that they simulated, their cores and links."""
    entries, hosts = subject.entries, provenance.hosts(subject)
    if not hosts:
        return ""
    kinds = "; ".join(filter(None, dict.fromkeys(map(_kind, hosts))))
    is_one = all(map(provenance.is_simulated, entries))
    where = f"on {'one machine' if is_one else several(len(hosts), 'host')}"
    where += f" ({kinds})" if kinds else ""
    nodes = [int(entry.settings["nodes"]) for entry in entries]
    if is_one and max(nodes) > 1:
        where += f" that simulated {_up_to(nodes, 'node')}"
    sentences = [f"Measured {where}"]
    workers = [entry.workers for entry in entries]
    total = max(map(cores, entries), default=0)
    if max(workers) > 1 and total:
        share = "shared" if max(workers) > total else "had"
        sentences[0] += f"; {_up_to(workers, 'worker')} {share} {several(int(total), 'core')}"
    rates = [
        link_rate(str(entry.settings["rate"])) for entry in entries if "rate" in entry.settings
    ]
    if rates:
        sentences.append(f"The link rate was {' and '.join(dict.fromkeys(rates))}")
    return ". ".join(sentences) + "."


def cores(entry: Entry) -> float:
    """The number of cores of all workers of a run together; 0 if it is unknown."""
    known = numbers(env.get("cores") for env in entry.run.environments.values())
    return sum(known[:1] if provenance.is_simulated(entry) else known)


def _up_to(counts: list[int], noun: str) -> str:
    return ("up to " if min(counts) != max(counts) else "") + several(max(counts), noun)


def several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _kind(host: Row) -> str:
    own = several(int(host["cores"]), "core") if numbers([host.get("cores")]) else None
    parts: list[Any] = [host.get("processor"), own, host.get("memory"), host.get("GPUs")]
    return ", ".join(str(part) for part in parts if part)
