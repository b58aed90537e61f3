"""Measure collectives, run the cells of a sweep (on testbeds if they set a rate), and report."""

import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs import cli
from launch.deadlines import STUDY_TESTBED_STARTS_S
from launch.spec import RUN_MODULE, NodeSpec
from launch.studies.cell_runs import (
    STOPS,
    SUBMIT,
    Work,
    config_flags,
    last_line,
    run_all,
    text_of,
    work_of,
)
from launch.studies.cells import Sweep
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.run_files import COLLECTIVES

FOLDER = "collectives"
# A program that keeps a core busy until it is killed, or for half a day.
BUSY = "import time\nend = time.monotonic() + 43200\nwhile time.monotonic() < end: pass"
TESTBED = str(CHECKOUT / "launch" / "testbed.py")


def run(sweep: Sweep, at_once: int = 1, groups: Sequence[Sequence[NodeSpec]] = ()) -> int | None:
    """Run the cells that are not done yet; return the signal that stopped the sweep, if any.

    Cells with the same link rate run on one testbed with that rate, where the collectives are
    measured first. `groups`: the hosts for each of the runs at the same time; empty if the hosts
    are not divided among them.
    """
    for rate in dict.fromkeys(cell.rate for cell in sweep.unfinished):
        cells = [cell for cell in sweep.unfinished if cell.rate == rate]
        nodes = max(cell.nodes or 1 for cell in cells)
        with rated_cluster(rate, nodes) as hosts:
            if stopped_by := collectives(sweep, rate, nodes, hosts):
                return stopped_by
            works = []
            for cell in cells:
                own = hosts[: cell.nodes]
                busy = _busy(own[len(own) - cell.busy :])
                works.append(work_of(sweep, cell, _host_flags(own), groups, busy))
            if stopped_by := run_all(works, at_once):
                return stopped_by
    return None


def collectives(sweep: Sweep, rate: str | None, nodes: int, hosts: Sequence[str]) -> int | None:
    """Measure the sweep's collectives on `nodes` nodes, unless that has been done.

    After a failure, which is printed, the sweep continues. Returns the signal that stopped the
    measurement, if any.
    """
    name = rate or "network"
    folder = sweep.folder / FOLDER
    if not sweep.collectives or nodes == 1 or COLLECTIVES.path(folder / name).exists():
        return None
    operations = ",".join(sweep.collectives)
    bench = ["--program=bench_collectives", f"--operations={operations}", f"--nodes={nodes}"]
    run_flags = [f"--logs-dir={folder}", f"--run-id={name}", "--overwrite", "--quiet"]
    flags = cli.for_bench([*_host_flags(hosts), *sweep.flags, *config_flags(sweep)])
    print(f"collectives: measuring {', '.join(sweep.collectives)}", flush=True)
    log = sweep.folder / "logs" / f"collectives-{name}.log"
    code, reason = _run(log, SUBMIT, *bench, *run_flags, *flags)
    if code:
        print(f"collectives: could not be measured: {reason or code}; see {log}", file=sys.stderr)
    return signal.SIGTERM if code in STOPS else None


def report(folder: Path) -> None:
    """Write the report of the runs that are done; a failure here does not fail the study."""
    print(_run(folder / "logs" / "report.log", RUN_MODULE, "train.report", str(folder))[1])


def _run(log: Path, script: str, *words: str) -> tuple[int, str]:
    """Run a script of the checkout, with its output in `log`; return its code and last line."""
    codes = list[int]()
    command = [sys.executable, str(CHECKOUT / script), *words]
    stopped_by = run_all([Work(log, lambda _: command, lambda code, _: codes.append(code))])
    return -signal.SIGTERM if stopped_by else codes[0], last_line(text_of(log))


@contextmanager
def rated_cluster(rate: str | None, nodes: int) -> Iterator[Sequence[str]]:
    """A context with a testbed whose links have this rate; without a rate there is no testbed.

    The context's value is the list of the testbed's hosts.

    Raises:
        MusterError: the testbed cannot be made; the message is that of its command.
    """
    if rate is None:
        yield ()
        return
    from launch.virtual_cluster import lifecycle  # imported here, since few sweeps need it

    _testbed("up", f"--nodes={nodes}", *([] if rate == "unlimited" else [f"--rate={rate}"]))
    try:
        yield lifecycle.NODE_LIST.read_text(encoding="utf-8").split()
    finally:
        _testbed("down")


def _host_flags(hosts: Sequence[str]) -> list[str]:
    """The flags with which launch/submit.py finds these nodes of the testbed, if there are any."""
    if not hosts:
        return []
    from launch.virtual_cluster import ssh_daemons

    return ["--launcher=ssh", f"--hosts={','.join(hosts)}", f"--ssh-config={ssh_daemons.CONFIG}"]


@contextmanager
def _busy(hosts: Sequence[str]) -> Iterator[None]:
    """A context in which another program keeps a core of each of these hosts busy."""
    programs = [
        subprocess.Popen(
            [sys.executable, TESTBED, "exec", host, "--", sys.executable, "-c", BUSY],
            stdin=subprocess.DEVNULL,
        )
        for host in hosts
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _testbed(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, TESTBED, *words],
        capture_output=True,
        text=True,
        timeout=STUDY_TESTBED_STARTS_S,
        check=False,
    )
    if done.returncode:
        raise MusterError(done.stderr.strip().removeprefix("error: "))
