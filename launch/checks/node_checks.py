"""Check each node on its own: its Python, code, GPUs, cores, shared memory and disk."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from configs import plugins
from configs.settings.launch import SCHEDULERS
from launch.checks.findings import CheckedNode, Findings, Row, groups, shortened
from launch.nodes.answers import Versions
from launch.nodes.node_facts import AGENT_PACKAGES, SHOWN_PACKAGES
from launch.nodes.resources import ASK_FOR_MORE, too_little_shared
from launch.spec import WorkersPython
from muster import extras
from muster.checkout import IS_INSTALLED
from muster.printable import listed

SHARED_MEMORY = "/dev/shm"
GB = 1_000_000_000
DISK_BYTES = 10 * GB  # required by the courses' exercises
SLOWEST = (
    "the slowest node sets the pace; leave out odd nodes, or give slower ones less work with "
    "--split"
)
SETUP = "muster run --hosts HOSTS --setup".split()


def python(findings: Findings) -> Row:
    """Whether all nodes have Muster's Python and the workers' packages, in the same versions."""
    missing = [node.name for node in findings.nodes if node.probe.versions is None]
    named = findings.workers.python
    make = "create it: make install"
    if findings.launcher == "ssh":
        option = [] if named is None else ["--python", named]
        make = f"create it on all nodes: {shlex.join([*SETUP, *option])}"
    if missing:
        paths = groups({node.name: node.probe.python for node in findings.nodes})
        line = f"{listed(missing)}: no environment at {paths[0]}"
        return Row("python", "FAIL", (line,), f"{make}, or choose another with MUSTER_PYTHON")
    if without := tuple(_without_base(findings.nodes)):
        return Row("python", "FAIL", without, f"{make}, or choose another with MUSTER_PYTHON")
    incomplete = [line for node in findings.nodes for line in _lacking(node, findings.workers)]
    if incomplete and named is not None:
        fix = "install these packages there, or choose another Python with --python"
        return Row("python", "FAIL", tuple(incomplete), fix)
    if incomplete:
        sees_all = IS_INSTALLED and all(node.probe.shared for node in findings.nodes)
        if findings.launcher != "ssh" or sees_all:
            path = findings.nodes[0].probe.python
            packages = [*extras.packages(extras.TRAINER)]
            make = f"install: {extras.install_command(extras.TRAINER, packages, path)}"
        return Row(
            "python", "FAIL", tuple(incomplete), f"{make}; or choose another Python with --python"
        )
    versions = groups({node.name: _versions(node, findings.workers) for node in findings.nodes})
    if len(versions) > 1:
        other = "install them, or choose another Python with --python"
        remedy = other if named is not None else make
        return Row("python", "FAIL", versions, f"all nodes need the same versions: {remedy}")
    if hidden := tuple(_hidden(findings)):
        fix = "Muster uses its own; rename those of the other package"
        return Row("python", "warn", hidden, fix)
    return Row("python", "ok", versions)


def _without_base(nodes: Iterable[CheckedNode]) -> Iterator[str]:
    """A line for each node whose agent would not start, with the packages that are missing."""
    for node in nodes:
        packages = node.probe.versions.packages if node.probe.versions else {}
        if names := [name for name in AGENT_PACKAGES if packages.get(name) is None]:
            yield f"{node.name}: {node.probe.python} has no {', '.join(names)}"


def _lacking(node: CheckedNode, workers: WorkersPython) -> Iterator[str]:
    """A line for each package that the workers' Python lacks on a node."""
    if workers.is_chosen_here and node.probe.shared:
        return
    has = "has" if workers.python is None else f"{workers.python} has"
    versions = _versions_of(node, workers)
    if versions is None:
        yield f"{node.name}: no Python at {workers.python}"
        return
    for name in workers.packages:
        if versions.packages.get(name) is None:
            yield f"{node.name}: {has} no {name}"


def _hidden(findings: Findings) -> Iterator[str]:
    """A line for each plug-in of another package that has the same name as one of Muster's own."""
    folders = {group: folder for folder, group in plugins.GROUPS.items()}
    for node in findings.nodes:
        versions = _versions_of(node, findings.workers)
        for entry in versions.plugins if versions else ():
            group, _, name = entry.partition(":")
            if group in folders and name in plugins.own_names(folders[group]):
                yield f"{node.name}: a package adds {name} to {group}, but Muster has its own"


def code(findings: Findings) -> Row:
    """Whether every node has this machine's checkout, or gets it before a run."""
    apart = [node.name for node in findings.nodes if not node.probe.shared]
    occupied = [node for node in findings.nodes if node.probe.foreign]
    if occupied and findings.launcher == "ssh":
        refusals = tuple(
            f"{node.name}: {node.probe.folder} contains {listed(node.probe.foreign)}, "
            "which Muster did not put there"
            for node in occupied
        )
        fix = "choose an empty or a new folder with --remote-dir"
        return Row("code", "FAIL", shortened(refusals), f"{fix}; see docs/ssh.md")
    if apart and findings.launcher != "ssh":
        fix = "put the checkout on a file system that all nodes share"
        return Row("code", "FAIL", (f"{listed(apart)}: another checkout, or none",), fix)
    line = f"{listed(apart)}: sent before each run" if apart else "all nodes share this checkout"
    return Row("code", "ok", (line,))


def gpus(findings: Findings) -> Row:
    """Whether all nodes have the same number and model of GPUs, and the same driver."""
    kinds = groups({node.name: _gpus(node.probe.gpus) for node in findings.nodes})
    return Row("GPUs", "ok", kinds) if len(kinds) == 1 else Row("GPUs", "warn", kinds, SLOWEST)


def cores(findings: Findings) -> Row:
    """Whether there are enough cores for the workers, if the number of workers is known."""
    known = [(node, node.cores) for node in findings.nodes if node.cores and node.workers]
    if not known:
        return Row("cores", "ok", ("not known until the job has its nodes",))
    words = groups({node.name: cores.words(node.workers) for node, cores in known})
    if not any(cores.are_too_few(node.workers) for node, cores in known):
        return Row("cores", "ok", words)
    more = f", or {ASK_FOR_MORE}" if findings.launcher in SCHEDULERS else ""
    return Row("cores", "warn", words, f"start fewer workers on each node{more}")


def disk(findings: Findings) -> Row:
    """Whether the data exists, and there is space for an environment, data and checkpoints."""
    problems = []
    free = []
    for node in findings.nodes:
        for use, disk in node.probe.disks.items():
            if use != "data":
                free.append(disk.free_bytes)
                if disk.free_bytes < DISK_BYTES:
                    problems.append(f"{node.name}: {use}: {disk.free_bytes / GB:.1f} GB")
            elif not disk.exists:
                problems.append(f"{node.name}: {use}: {disk.folder} does not exist")
    if problems:
        fix = "10 GB should be free; make room, or use another --logs-dir or --data-dir"
        return Row("free disk", "warn", shortened(problems), fix)
    return Row("free disk", "ok", (_span(free),))


def shared_memory(findings: Findings) -> Row:
    """Whether the data loaders' workers have room for the batches that they pass on."""
    nodes: dict[str, list[str]] = {}  # by their problem
    for node in findings.nodes:
        if problem := too_little_shared(node.shared_memory, node.workers or 1):
            nodes.setdefault(problem, []).append(node.name)
    if not nodes:
        return Row(SHARED_MEMORY, "ok", ("enough",))
    found = [f"{listed(names)}: {problem.partition('; ')[0]}" for problem, names in nodes.items()]
    fixes = dict.fromkeys(problem.partition("; ")[2] for problem in nodes)
    return Row(SHARED_MEMORY, "warn", shortened(found), "\n".join(fixes))


def _span(amounts: Iterable[float]) -> str:
    ordered = sorted(amounts)
    bounds = dict.fromkeys(f"{amount / GB:.0f}" for amount in (ordered[0], ordered[-1]))
    return f"{' to '.join(bounds)} GB"


def _versions_of(node: CheckedNode, workers: WorkersPython) -> Versions | None:
    """The versions of the workers' Python on a node."""
    return node.probe.versions if workers.python is None else node.probe.workers


def _versions(node: CheckedNode, workers: WorkersPython) -> str:
    versions = _versions_of(node, workers)
    if versions is None:
        return ""
    packages = versions.packages
    named = [f"{name} {packages[name]}" for name in SHOWN_PACKAGES if packages.get(name)]
    return ", ".join([f"python {versions.python}", *named])


def _gpus(lines: Sequence[str]) -> str:
    kinds = sorted(set(lines))
    counted = [f"{lines.count(kind)} x {kind.replace(', ', ', driver ')}" for kind in kinds]
    return " + ".join(counted) or "none"


ROWS: Sequence[Callable[[Findings], Row]] = (python, code, gpus, cores, shared_memory, disk)
