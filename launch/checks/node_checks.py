"""Rows about each node by itself: its Python, code, GPUs and disk."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from configs import plugins
from launch.checks.findings import Findings, Node, Row, groups, listed, shortened
from launch.spec import WorkersPython
from muster import extras
from muster.checkout import IS_INSTALLED

GB = 1_000_000_000
DISK_BYTES = 10 * GB  # required by the courses' exercises
SHOWN = ("torch", "transformers")
SLOWEST = "the slowest sets the pace; leave out odd nodes, or give slower ones less: --split"
SETUP = "muster run --hosts HOSTS --setup".split()


def python(findings: Findings) -> Row:
    """Whether all nodes have Muster's Python, and workers what they need, in the same versions."""
    missing = [node.name for node in findings.nodes if node.probe["versions"] is None]
    named = findings.workers.python
    make = "make it: make install"
    if findings.launcher == "ssh":
        option = [] if named is None else ["--python", named]
        make = f"make it on all nodes: {shlex.join([*SETUP, *option])}"
    if missing:
        wanted = groups({one.name: one.probe["python"] for one in findings.nodes})
        line = f"{listed(missing)}: no environment at {wanted[0]}"
        return Row("python", "FAIL", (line,), f"{make}, or name another with MUSTER_PYTHON")
    incomplete = [line for node in findings.nodes for line in _lacking(node, findings.workers)]
    if incomplete and named is not None:
        fix = "install there what the run needs, or name another with --python"
        return Row("python", "FAIL", tuple(incomplete), fix)
    if incomplete:
        sees_all = IS_INSTALLED and all(node.probe["shared"] for node in findings.nodes)
        if findings.launcher != "ssh" or sees_all:
            path = findings.nodes[0].probe["python"]
            packages = [*extras.packages(extras.TRAINER)]
            make = f"install: {extras.install_command(extras.TRAINER, packages, path)}"
        return Row("python", "FAIL", tuple(incomplete), f"{make}; or name another with --python")
    found = groups({one.name: _versions(one, findings.workers) for one in findings.nodes})
    if len(found) > 1:
        do = "install these, or name another with --python" if named is not None else make
        return Row("python", "FAIL", found, f"nodes must have the same: {do}")
    if hidden := tuple(_hidden(findings)):
        fix = "Muster's own are used; another package's need other names"
        return Row("python", "warn", hidden, fix)
    return Row("python", "ok", found)


def _lacking(node: Node, workers: WorkersPython) -> Iterator[str]:
    """A line for each package that the workers' Python lacks on a node."""
    if workers.is_chosen_here and node.probe["shared"]:
        return
    if workers.python is None:
        what = "has"
        versions = node.probe["versions"]
    else:
        what = f"{workers.python} has"
        versions = node.probe["workers"]
    if versions is None:
        yield f"{node.name}: no Python at {workers.python}"
        return
    for name in workers.packages:
        if versions.get(name) is None:
            yield f"{node.name}: {what} no {name}"


def _hidden(findings: Findings) -> Iterator[str]:
    """The plug-ins of other packages that Muster's own hide."""
    folders = {group: folder for folder, group in plugins.GROUPS.items()}
    for node in findings.nodes:
        versions = node.probe["versions" if findings.workers.python is None else "workers"] or {}
        for entry in versions.get("plugins", ()):
            group, _, name = entry.partition(":")
            if group in folders and name in plugins.own_names(folders[group]):
                yield f"{node.name}: a package adds {name} to {group}, which Muster has itself"


def code(findings: Findings) -> Row:
    """Whether every node has this machine's checkout, or gets it before a run."""
    apart = [node.name for node in findings.nodes if not node.probe["shared"]]
    foreign = [node for node in findings.nodes if node.probe["foreign"]]
    if foreign and findings.launcher == "ssh":
        found = tuple(
            f"{one.name}: {one.probe['folder']} holds {listed(one.probe['foreign'])}, "
            "which Muster did not send there"
            for one in foreign
        )
        fix = "name an empty or a new folder with --remote-dir"
        return Row("code", "FAIL", shortened(found), f"{fix}; see docs/ssh.md")
    if apart and findings.launcher != "ssh":
        fix = "put the checkout on a file system that all nodes share"
        return Row("code", "FAIL", (f"{listed(apart)}: not this checkout",), fix)
    sent = f"{listed(apart)}: each run sends it first" if apart else "all see this checkout"
    return Row("code", "ok", (sent,))


def gpus(findings: Findings) -> Row:
    """Whether all nodes have the same number, model and driver of GPUs."""
    found = groups({node.name: _gpus(node.probe["gpus"]) for node in findings.nodes})
    return Row("GPUs", "ok", found) if len(found) == 1 else Row("GPUs", "warn", found, SLOWEST)


def disk(findings: Findings) -> Row:
    """Whether there is space for an environment, data and checkpoints, and the data exists."""
    odd, free = [], []
    for node in findings.nodes:
        for what, one in node.probe["disks"].items():
            if what != "data":
                free.append(one["free_bytes"])
                if one["free_bytes"] < DISK_BYTES:
                    odd.append(f"{node.name}: {what}: {one['free_bytes'] / GB:.1f} GB")
            elif not one["exists"]:
                odd.append(f"{node.name}: {what}: {one['folder']} is not there")
    if odd:
        fix = "10 GB are to be free; make room, or use another --logs-dir or --data-dir"
        return Row("free disk", "warn", shortened(odd), fix)
    return Row("free disk", "ok", (_span(free),))


def _span(amounts: Iterable[float]) -> str:
    ordered = sorted(amounts)
    bounds = dict.fromkeys(f"{one / GB:.0f}" for one in (ordered[0], ordered[-1]))
    return f"{' to '.join(bounds)} GB"


def _versions(node: Node, workers: WorkersPython) -> str:
    versions = node.probe["versions" if workers.python is None else "workers"] or {}
    return ", ".join(
        f"{name} {versions[name]}" for name in ("python", *SHOWN) if versions.get(name)
    )


def _gpus(lines: Sequence[str]) -> str:
    kinds = sorted(set(lines))
    counted = [f"{lines.count(kind)} x {kind.replace(', ', ', driver ')}" for kind in kinds]
    return " + ".join(counted) or "none"


ROWS: Sequence[Callable[[Findings], Row]] = (python, code, gpus, disk)
