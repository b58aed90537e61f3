"""Record which nodes caused failures, in one file per user; `--exclude auto` avoids bad nodes.

A node is blamed if it was lost, or if a rank's error shows that its hardware failed. It is never
blamed for what a program did on it. A node that was the cause twice in seven days is bad. A node is
identified by its name in Slurm or in the list of hosts, and by its cluster: Slurm's cluster name,
or `ssh`.
"""

import fcntl
import os
import re
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launch.deadlines import NODE_FAILURES_COUNT_FOR_S
from launch.runs import run_record
from launch.spec import NodeFacts
from muster.records import fits, is_time
from muster.run_files import state_folder
from muster.writing import CannotWrite, read_json, write_json

AUTO = "auto"  # in the text of --exclude
MIN_FAILURES = 2
FAILURE: dict[Any, Any] = {
    "time_unix_s": is_time,
    **dict.fromkeys(("cluster", "node", "run_id", "message"), str),
}
HARDWARE = re.compile(r"uncorrectable ECC|fallen off the bus|hardware stack error", re.IGNORECASE)


def note(run_dir: Path, cluster: str, nodes: Sequence[NodeFacts], lost: str | None) -> None:
    """Record the node that is to blame for the end of the run, if it is one of the run's `nodes`.

    `lost`: the first node that the leader, or another node, lost.
    """
    end = run_record.read_end(run_dir) or {}
    text = str(end.get("message"))
    at_fault = lost if end.get("cause") == "node_lost" else None
    rank = end.get("rank")
    if at_fault is None and rank is not None and HARDWARE.search(text):
        at_fault = run_record.nodes_of_ranks(run_dir).get(rank)
    hosts = [node.spec.host for node in nodes if node.name == at_fault]
    if hosts:
        last = (text.strip().splitlines() or [""])[-1].removeprefix("error: ")
        record = {"time_unix_s": time.time(), "cluster": cluster, "node": hosts[0]}
        record |= {"run_id": run_dir.name, "message": last}
        _change(lambda records: [*records, record])


def failures() -> list[dict[str, Any]]:
    """The failures of the last seven days, in the order in which they were recorded."""
    with suppress(RuntimeError):  # a user without a home
        content = read_json(_path(), "failures") or {"failures": []}
        since_s = time.time() - NODE_FAILURES_COUNT_FOR_S
        records = content["failures"] if isinstance(content["failures"], list) else []
        whole = [record for record in records if fits(record, FAILURE)]
        return [record for record in whole if record["time_unix_s"] > since_s]
    return []


def bad_nodes(cluster: str) -> dict[str, str]:
    """The cluster's bad nodes, and the last failure of each."""
    by_node: dict[str, list[dict[str, Any]]] = {}
    for failure in failures():
        if failure["cluster"] == cluster:
            by_node.setdefault(failure["node"], []).append(failure)
    reasons = {}
    for node, of_node in by_node.items():
        if len(of_node) >= MIN_FAILURES:
            last = f"most recently in {of_node[-1]['run_id']}: {of_node[-1]['message']}"
            reasons[node] = f"the cause of {len(of_node)} failures in seven days, {last}"
    return reasons


def warnings(cluster: str, nodes: Sequence[NodeFacts]) -> list[str]:
    """A line for each bad node among those on which a run starts."""
    reasons = bad_nodes(cluster)
    hosts = [node.spec.host for node in nodes if node.spec.host in reasons]
    return [f"{host} was {reasons[host]}; --exclude {AUTO} avoids it" for host in hosts]


def avoided(hosts: Sequence[str], cluster: str, least: int) -> set[str]:
    """The bad hosts, if at least `least` hosts remain without them; else none."""
    bad_hosts = {host for host in hosts if host in bad_nodes(cluster)}
    return bad_hosts if len(hosts) - len(bad_hosts) >= least else set()


def excluded(text: str | None, cluster: Callable[[], str]) -> str | None:
    """The value of --exclude, with the bad nodes in place of `auto`."""
    names = [] if text is None else text.split(",")
    if AUTO not in names:
        return text
    return ",".join([*(name for name in names if name != AUTO), *bad_nodes(cluster())]) or None


def forget(names: Collection[str]) -> None:
    """Forget the failures of these nodes, or of all of them."""
    _change(lambda records: [each for each in records if names and each["node"] not in names])


def _change(changed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Replace the failures with the result of `changed`; only one process at a time does this."""
    with suppress(CannotWrite, OSError, RuntimeError):  # these errors are no reason to end a run
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".lock").open("w") as lock:
            with suppress(OSError):  # a disk without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            write_json(path, {"failures": changed(failures())})


def _path() -> Path:
    return state_folder(os.environ) / "nodes.json"
