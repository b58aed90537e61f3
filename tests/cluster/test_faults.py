"""Whatever fails, on any node: the run names it and continues, and in the end all of it ends."""

import re
import signal
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from launch.deadlines import AGENT_LOST_WHEN_SILENT_S
from muster import run_files
from muster.errors import STOPPED
from tests.cluster import recoveries, ways
from tests.cluster.recoveries import FAULTS, PROGRAMS, Loop, daemons_of
from tests.cluster.ways import Run, Script
from tests.commands import cause_in
from tests.launch.submit import submit, wait_until
from tests.required import MEMORY_CGROUPS, memory_cgroup_version, need
from tests.train.workers import losses_by_step, read_json

SLOW = pytest.mark.slow
# For faults outside workers, a shell loop shows as much as a program that imports torch.
STARTS = PROGRAMS | {"loop": Loop}
# The faults that a run meets, one after another; after the last one, it may not start again.
CHOSEN = [
    ("ssh", "loop", ("agent killed", "connection cut", "link down", "agent of node 0 killed")),
    ("sbatch", "trainer", ("node lost", "worker killed")),
    pytest.param(
        "ssh", "plain script", ("torchrun killed", "worker raises", "agent told to end"), marks=SLOW
    ),
    pytest.param("sbatch", "plain script", ("worker segfaults", "worker stopped"), marks=SLOW),
    pytest.param("ssh", "trainer", ("worker aborts", "agent told to stop"), marks=SLOW),
]


@pytest.fixture(scope="module")
def faulty_python(tmp_path_factory):
    return recoveries.faulty_python(tmp_path_factory.mktemp("faulty"))


@pytest.fixture
def begin(cluster, tmp_path, monkeypatch, faulty_python):
    """Start runs, and leave nothing of them after the test."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", faulty_python)
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "0")  # otherwise a job starts again
    begun = []

    def start_run(way, program, **more):
        begun.append(recoveries.begin(cluster, way, program, tmp_path / "runs", **more))
        return begun[-1]

    yield start_run
    for run in begun:
        recoveries.leave_nothing(run)


def last_words(text: str) -> str:
    """Return the last line of the cause, leaving out Slurm's own messages."""
    slurm = ("srun: ", "slurmstepd: ", "error: no answer from ")
    return cause_in("\n".join(line for line in text.splitlines() if not line.startswith(slurm)))


@pytest.mark.parametrize(
    ("way", "program", "faults"),
    CHOSEN,
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
def test_fault_is_named_and_run_goes_on_or_ends(begin, tmp_path, way, program, faults):
    *met, last = [FAULTS[name] for name in faults]
    run = begin(way, STARTS[program](), restarts=len(met))
    recovered = [recoveries.recover(run, fault) for fault in met]
    try:
        last.hit(run)
        run.ends()
    finally:
        last.after(run)
    assert run.end()[0] != 0
    assert_each_is_named(run, [*met, last])
    assert_each_recovery_is_printed(run, recovered, has_steps=program == "trainer")
    if program == "trainer":
        assert "worker raises" in faults or "Traceback" not in run.printed()
        assert_as_if_nothing_was_lost(run, tmp_path, 3 if "node lost" in faults else 4)


def assert_each_is_named(run: Run, faults: list[recoveries.Fault]) -> None:
    """Check that the record of the attempt that each fault ended, and the terminal, name the fault.

    The last fault comes last on the terminal.
    """
    before = (f"attempts/{number}/exit.json" for number in range(len(faults) - 1))
    ends = [*(read_json(run.run_dir / path) for path in before), run.exit()]
    for fault, end in zip(faults, ends, strict=True):
        message = end["message"].splitlines()[-1]
        assert re.search(fault.says, message) and end["code"] == fault.code, end
        assert message in run.printed()
    if faults[-1].code != STOPPED:  # an orderly stop is no failure: its words come from a rank
        assert re.search(faults[-1].says, last_words(run.printed())), run.printed()


def assert_each_recovery_is_printed(run: Run, recovered: list[dict], *, has_steps: bool) -> None:
    back = "step [0-9]+ again" if has_steps else "first output"
    for record in recovered:
        line = f"attempt {record['attempt']}: {back} after {record['total_s']:.1f} s"
        assert re.search(f"^{line}$", run.printed(), re.MULTILINE), run.printed()


def assert_as_if_nothing_was_lost(run: Run, logs: Path, fewest: int) -> None:
    """Check that attempts used all nodes that were left, and have the losses of one run.

    `fewest` is the number of nodes of the attempt with the fewest nodes.
    """
    attempts = [*run_files.attempt_folders(run.run_dir).values(), run.run_dir]
    nodes = [len(list((folder / "metrics").glob("rank_*.jsonl"))) for folder in attempts]
    went_on = re.findall(r"^attempt \d+ of .*: .* on (\d) nodes?$", run.printed(), re.M)
    assert list(map(int, went_on)) == nodes[1:] and min(nodes) == fewest
    found = losses_by_step(*attempts)
    whole = ["--nodes", "2", "--max-steps", str(max(found)), "--logs-dir", str(logs)]
    words = [*ways.SYNTHETIC, "--epochs", "1000000", *recoveries.OFTEN, *recoveries.EXACT]
    code, _, err = submit("--launcher", "local", *whole, *words, "--run-id", "whole")
    assert code == 0, err
    assert found == pytest.approx(losses_by_step(logs / "whole"), abs=1e-5)


@SLOW
def test_agent_cut_off_from_the_leader_of_its_job_leaves_after_15_s(begin):
    """A leader that is only suspended has more time."""
    run = begin("sbatch", Loop())
    end = run_files.AGENT_END.path(run.run_dir, node=2)
    try:
        recoveries.link("down")(run)
        wait_until(end.exists)
    finally:
        recoveries.link("up")(run)
    assert "launcher for 15 s" in read_json(end)["message"]


@SLOW
def test_a_leader_in_a_job_that_was_stopped_for_a_while_loses_no_agent(begin):
    run = begin("sbatch", Loop())
    leader = psutil.Process(read_json(run_files.JOB.path(run.run_dir))["pid"])
    leader.suspend()
    try:
        time.sleep(2 * AGENT_LOST_WHEN_SILENT_S)
    finally:
        leader.resume()
    fault = FAULTS["worker killed"]
    fault.hit(run)
    run.ends()
    assert re.search(fault.says, run.exit()["message"].splitlines()[-1]), run.printed()


def script_record(run: Run) -> dict:
    """Return the record of the script's end, by SIGTERM, after it has saved."""
    run.ends()
    assert run.end()[0] != 0 and (run.folder / "saved").read_text() == "all of it"
    assert run.exit()["code"] == 128 + signal.SIGTERM
    return run.exit()


@SLOW
def test_a_script_that_catches_sigterm_saves(cluster, begin):
    run = begin("sbatch", Script("--saves"))
    # with --signal, scancel sends no SIGKILL after KillWait, which is 10 s here
    cluster.run("scancel", "--signal=TERM", ways.running_job(cluster))
    script_record(run)


@SLOW
def test_a_script_that_catches_sigterm_saves_before_the_time_is_up(begin, monkeypatch):
    monkeypatch.setitem(ways.PYTHON, "SBATCH_TIMELIMIT", "2")
    assert script_record(begin("sbatch", Script("--saves")))["message"].endswith("time limit")


@pytest.fixture
def limit_memory(cluster):
    """A function that limits node2, in a cgroup, to a number of bytes more than it uses."""
    need("memory cgroup")
    version = memory_cgroup_version()
    folder = Path(tempfile.mkdtemp(prefix="muster-test-", dir=MEMORY_CGROUPS[version]))
    used, most = {
        1: ("memory.usage_in_bytes", "memory.limit_in_bytes"),
        2: ("memory.current", "memory.max"),
    }[version]

    def limit(more_bytes: int) -> None:
        swap = folder / "memory.swap.max"  # absent in version 1 and in a kernel without swap
        if swap.exists():
            swap.write_text("0")
        (folder / most).write_text(str(int((folder / used).read_text()) + more_bytes))

    place = cluster.exec("node2", "readlink", "/proc/self/ns/net").stdout.strip()
    for one in daemons_of(place, "slurmd", "sshd"):
        (folder / "cgroup.procs").write_text(str(one.pid))
    yield limit
    for pid in (folder / "cgroup.procs").read_text().split():
        (folder.parent / "cgroup.procs").write_text(pid)
    folder.rmdir()


def test_a_program_that_eats_all_memory(limit_memory, begin):
    run = begin("ssh", PROGRAMS["plain script"]())
    limit_memory(200_000_000)
    (run.folder / "fault_2").write_text("eat")
    run.ends()
    run.end()
    says = "rank 2 on node2 was killed by SIGKILL; out of memory on node2: the kernel killed it"
    assert says in last_words(run.printed())
    assert says in run.exit()["message"]
