"""Whatever breaks, on whichever node: the run ends everywhere, and says what broke."""

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from launch.runs.failure import explain
from tests.cluster import ways
from tests.cluster.recoveries import kill_node, link, network_of, slurm_daemons
from tests.cluster.testbeds import REPOSITORY, Cluster
from tests.cluster.ways import Run, Script, Trainer
from tests.launch.submit import wait_until

TIMEOUT_S = 20.0  # a program's own; ranks of a busy machine are not late within it
WAYS = {"ssh": ways.ssh, "sbatch": ways.sbatch("multinode.sh")}
WHOLE = "WHOLE_MATRIX" in os.environ


@dataclass(frozen=True)
class Fault:
    """What is done to a run, and what it says of it last."""

    hit: Callable[[Run], object]
    says: str  # a pattern
    ways: tuple[str, ...] = tuple(WAYS)
    trainer: str = ""  # the way in which our trainer meets it in an ordinary run; "": in none
    script: str = ""  # the way in which a user's script meets it in an ordinary run; "": none
    code: int = 1
    words: tuple[str, ...] = ()  # of the script
    before: Callable[[Cluster], object] = lambda cluster: None
    after: Callable[[Run], object] = lambda run: None


def tell(rank: int, how: str) -> Callable[[Run], object]:
    return lambda run: (run.folder / f"fault_{rank}").write_text(how)


def cut_connection(run: Run) -> None:
    below = psutil.Process(run.process.pid).children(recursive=True)
    (client,) = (one for one in below if one.name() == "ssh" and "node2" in one.cmdline())
    client.kill()


GONE = r"(node2|node3) \(10\.10\.1\.\d\) is gone: its agent was killed, or the node went down"
FAULTS = {
    "a_worker_raises": Fault(tell(2, "raise"), "^ValueError: sample 17 is empty$", script="ssh"),
    "a_worker_is_killed": Fault(
        lambda run: run.worker(2).kill(),
        r"rank 2 ended without a message \(killed\? out of memory\?\)",
        code=137,
        trainer="sbatch",
    ),
    "a_worker_aborts": Fault(tell(2, "abort"), "rank 2 on node2 died: Aborted", code=134),
    "a_worker_segfaults": Fault(
        lambda run: run.worker(2).send_signal(signal.SIGSEGV),
        "rank 2 on node2 died: Segmentation fault",
        code=139,
    ),
    "a_worker_is_stopped": Fault(
        lambda run: run.worker(2).suspend(),
        r"rank 2 on node2 has not come to all_reduce .* stopped by a signal \(SIGSTOP\)",
        script="sbatch",
        words=("--timeout-s", str(TIMEOUT_S)),
    ),
    "a_worker_exits": Fault(
        tell(2, "exit"), r"^error: rank 2 on \S+: exit code 7$", script="sbatch", code=7
    ),
    "torchrun_is_killed": Fault(
        lambda run: run.torchrun(1).kill(),
        r"torchrun on node1 was killed by SIGKILL \(rank 1\)",
        code=137,
        trainer="ssh",
    ),
    "a_supervisor_is_killed": Fault(
        lambda run: run.agent(3).kill(),
        r"node3 \(10\.10\.1\.4\) is gone: its agent was killed, or the node went down",
        trainer="sbatch",
    ),
    "the_supervisor_of_node_0_is_killed": Fault(
        lambda run: run.agent(0).kill(), "is gone: its agent was killed", trainer="ssh"
    ),
    "a_supervisor_is_told_to_end": Fault(
        lambda run: run.agent(2).terminate(), "node2 was sent SIGTERM", script="ssh"
    ),
    "a_link_goes_down": Fault(link("down"), r"is its link down\?", after=link("up"), trainer="ssh"),
    "a_node_dies": Fault(kill_node, GONE, ways=("ssh",)),
    "a_connection_is_cut": Fault(
        cut_connection, "node2 .* the connection to it was cut", ways=("ssh",), trainer="ssh"
    ),
}


def meetings() -> list[object]:
    """Who meets which fault: in an ordinary run the trainer, or a script, in one way; or in all."""
    found = []
    for name, fault in FAULTS.items():
        for way in fault.ways:
            if way == fault.trainer or (WHOLE and fault.trainer):
                found.append(pytest.param(fault, way, Trainer(), id=f"{name}-trainer-{way}"))
            if WHOLE or way == fault.script:
                script = Script(*fault.words)
                found.append(pytest.param(fault, way, script, id=f"{name}-script-{way}"))
    return found


@pytest.fixture
def begin(cluster, tmp_path, monkeypatch):
    """Starts a run, and leaves nothing of it."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")  # else a job starts again
    made = []

    def one(way: str, program: Trainer) -> Run:
        folder = tmp_path / "runs"
        folder.mkdir()
        run = Run(cluster, WAYS[way], folder, program=program)
        run.way = way
        made.append(run)
        return run

    yield one
    ways.cancel_all(cluster)
    for run in made:
        run.process.kill()
        run.process.wait()
        assert wait_until(lambda run=run: run.left() == [])


def message(run) -> str:
    """All that the user sees at the end, where it is seen."""
    code, _, err = run.end()
    assert code != 0
    output = run.folder / "job.out"
    return err + (output.read_text() if output.exists() else "")


def last_words(text: str) -> str:
    """The last line, but for what Slurm has to say of it."""
    slurm = ("srun: ", "slurmstepd: ", "error: no answer from ")
    return [line for line in text.splitlines() if line and not line.startswith(slurm)][-1]


@pytest.mark.parametrize(("fault", "way", "program"), meetings())
def test_what_breaks_is_named_and_all_end(cluster, begin, fault, way, program):
    fault.before(cluster)
    run = begin(way, program)
    try:
        fault.hit(run)
        run.ends()
    finally:
        fault.after(run)
    text = message(run)
    end = json.loads((run.run_dir / "exit.json").read_text())
    assert re.search(fault.says, last_words(text)), text
    assert re.search(fault.says, end["message"].splitlines()[-1]), end
    assert end["code"] == fault.code
    if isinstance(program, Script):
        return
    assert "Traceback" not in text


def chosen(way: str) -> list[str]:
    """In an ordinary run one way is enough for a script."""
    return list(WAYS) if WHOLE else [way]


def stop(run: Run) -> None:
    """Without the SIGKILL that scancel alone has follow after KillWait, here 10 s."""
    if run.way == "ssh":
        run.process.terminate()
    else:
        run.cluster.run("scancel", "--signal=TERM", ways.running_job(run.cluster))


@pytest.mark.parametrize("way", chosen("sbatch"))
def test_a_script_that_catches_sigterm_saves(begin, way):
    run = begin(way, Script("--saves"))
    stop(run)
    run.ends()
    message(run)
    assert (run.folder / "saved").read_text() == "all of it"
    assert wait_until((run.run_dir / "exit.json").exists)
    assert json.loads((run.run_dir / "exit.json").read_text())["code"] == 128 + signal.SIGTERM


@pytest.mark.skipif(not WHOLE, reason="two minutes: make test-all")
def test_a_script_that_catches_sigterm_saves_before_the_time_is_up(begin, monkeypatch):
    submit = WAYS["sbatch"]

    def two_minutes(*given):
        argv = submit(*given)
        script = argv.index(str(REPOSITORY / "slurm" / "multinode.sh"))
        return [*argv[:script], "--time=2", *argv[script:]]

    monkeypatch.setitem(globals(), "WAYS", {"sbatch": two_minutes})
    run = begin("sbatch", Script("--saves"))
    run.ends()
    assert (run.folder / "saved").read_text() == "all of it"
    assert last_words(message(run)).endswith("the time of its job is nearly up")
    assert json.loads((run.run_dir / "exit.json").read_text())["code"] == 128 + signal.SIGTERM


@pytest.fixture
def small_node(cluster):
    """A node whose daemons, and all that they start, are in a cgroup of version 1."""
    folder = Path("/sys/fs/cgroup/memory/muster-test-small")
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error.strerror}")
    place = cluster.exec("node2", "readlink", "/proc/self/ns/net").stdout.strip()
    for one in psutil.process_iter():
        if one.name() in ("slurmd", "sshd") and network_of(one.pid) == place:
            (folder / "cgroup.procs").write_text(str(one.pid))
    yield folder
    for pid in (folder / "cgroup.procs").read_text().split():
        (folder.parent / "cgroup.procs").write_text(pid)
    folder.rmdir()


@pytest.mark.parametrize("way", chosen("ssh"))
def test_a_script_that_eats_all_memory(begin, way, small_node):
    run = begin(way, Script())
    used = int((small_node / "memory.usage_in_bytes").read_text())
    (small_node / "memory.limit_in_bytes").write_text(str(used + 200_000_000))
    tell(2, "eat")(run)
    run.ends()
    says = "rank 2 ended without a message (out of memory on node2: the kernel killed it for that)"
    assert says in last_words(message(run))
    assert says in json.loads((run.run_dir / "exit.json").read_text())["message"]


@pytest.mark.parametrize("program", [Trainer(), Script()] if WHOLE else [Trainer()])
def test_a_node_of_slurm_dies(begin, program):
    """slurmd and the step's supervisor, as when its node goes down; the job is Slurm's to end."""
    run = begin("sbatch", program)
    daemons = slurm_daemons(run, 2)
    assert {one.name() for one in daemons} == {"slurmd", "slurmstepd"}
    for one in daemons:
        one.kill()
    run.ends()
    assert re.search(GONE, explain(run.run_dir, 4, 1).text)
