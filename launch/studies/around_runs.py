"""A study: its runs on testbeds with their link rates, collectives before, a report after them."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from configs import cli
from configs.plugins import REPOSITORY
from launch.spec import RUN_MODULE
from launch.studies import cell_process
from launch.studies.cell_process import STOPS, run_all
from launch.studies.cell_runs import SUBMIT, work_of
from launch.studies.cells import Sweep
from launch.studies.progress_record import Note, Notes
from muster.errors import MusterError
from muster.run_files import COLLECTIVES

FOLDER = "collectives"
# Another program that takes cores until it is ended; by itself it ends after half a day.
BUSY = "import time\nend = time.monotonic() + 43200\nwhile time.monotonic() < end: pass"
TESTBED = str(REPOSITORY / "launch" / "testbed.py")


def run(
    study: Sweep,
    notes: Notes,
    folder: Path,
    more: Sequence[str],
    tell: Callable[[Note], None],
) -> int | None:
    """Run what is not done yet; return the signal that ended it, if any.

    Cells with a link rate are grouped, each group on a testbed with that rate, on which the study's
    collectives are measured first. `more` are flags for every run; `tell` is called after each
    change.
    """
    left = [cell for cell in study.cells if notes.of(cell.id).state != "done"]
    for rate in dict.fromkeys(cell.rate for cell in left):
        group = [cell for cell in left if cell.rate == rate]
        nodes = max(cell.nodes or 1 for cell in group)
        with rated_cluster(rate, nodes) as env:
            if study.collectives and nodes > 1:
                flags = [*_place(env, nodes), *more]
                if collectives(study, rate, nodes, folder, flags, env) in STOPS:
                    return signal.SIGTERM
            for cell in group:
                note, of = notes.of(cell.id), cell.nodes or 1
                flags = _place(env, of)
                work = work_of(study, cell, note, folder, lambda _: flags, env=env)  # noqa: B023
                with _busy(cell.busy, of):
                    codes, stopped_by = run_all([work], 1, tell)
                if stopped_by is not None or codes.get(cell.id) in STOPS:
                    return stopped_by or signal.SIGTERM
    return None


def collectives(
    study: Sweep,
    rate: str | None,
    nodes: int,
    folder: Path,
    more: Sequence[str],
    env: Mapping[str, str],
) -> int:
    """Measure the study's collectives on `nodes` nodes, unless that is done; return the exit code.

    A failure is printed, and the study continues without predictions.
    """
    name = rate or "network"
    if COLLECTIVES.path(folder / FOLDER / name).exists():
        return 0
    bench = ["--program=bench_collectives", f"--operations={','.join(study.collectives)}"]
    place = [f"--logs-dir={folder / FOLDER}", f"--run-id={name}", "--overwrite", "--quiet"]
    print(f"collectives: measuring {', '.join(study.collectives)}", flush=True)
    words = [sys.executable, SUBMIT, f"--nodes={nodes}", *bench, *place, *cli.for_bench(more)]
    log = folder / "logs" / f"collectives-{name}.log"
    code = cell_process.run(words, env, log)
    if code:
        why = cell_process.last_message(log) or f"exit code {code}"
        print(f"collectives: not measured: {why}; see {log}", file=sys.stderr)
    return code


def predictions(folder: Path) -> None:
    """Write predicted times of steps beside the measured ones; from one network's collectives."""
    found = sorted((folder / FOLDER).glob(f"*/{COLLECTIVES.pattern}"))
    if len(found) != 1:
        return
    done = _run_module(["train.cost", str(folder), f"--collectives={found[0]}"])
    if done.returncode:
        print(f"no prediction: {cell_process.last_line(done.stderr)}", file=sys.stderr)


def report(folder: Path) -> None:
    """Write the report of what is done; if it fails, the study does not."""
    done = _run_module(["train.report", str(folder)])
    print(cell_process.last_line(done.stderr if done.returncode else done.stdout))


def _run_module(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, RUN_MODULE, *words],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def rated_cluster(rate: str | None, nodes: int) -> Iterator[Mapping[str, str]]:
    """The variables of a testbed whose links have one rate; without a rate there is none.

    Raises:
        MusterError: the testbed cannot be made; it says why.
    """
    if rate is None:
        yield {}
        return
    _testbed("up", f"--nodes={nodes}", *([] if rate == "unlimited" else [f"--rate={rate}"]))
    try:
        variables = _testbed("env").removeprefix("export ").split()
        yield dict(word.split("=", 1) for word in variables)
    finally:
        _testbed("down")


def _place(env: Mapping[str, str], nodes: int) -> list[str]:
    """Flags for launch/submit.py to use that many nodes of the testbed, if there is one."""
    if not env:
        return []
    hosts = Path(env["MUSTER_HOSTS"]).read_text(encoding="utf-8").split()[:nodes]
    config = env["MUSTER_SSH_CONFIG"]
    return ["--launcher=ssh", f"--hosts={','.join(hosts)}", f"--ssh-config={config}"]


@contextmanager
def _busy(nodes: int, of: int) -> Iterator[None]:
    """A context: another program runs on the cores of the last `nodes` of the first `of`."""
    programs = [
        subprocess.Popen(
            [sys.executable, TESTBED, "exec", f"node{of - 1 - number}", "--"]
            + [sys.executable, "-c", BUSY],
            stdin=subprocess.DEVNULL,
        )
        for number in range(nodes)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


def _testbed(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, TESTBED, *words], capture_output=True, text=True, timeout=180, check=False
    )
    if done.returncode:
        raise MusterError(done.stderr.strip().removeprefix("error: "))
    return done.stdout
