"""Which cause a failed run prints, given the records that it has left.

For each run in `RUNS`, `causes.txt` has the exit code, the word for the cause, and the output.
`pytest tests/launch/runs/test_failure.py --update` records the current output.
"""

import os
import re
import time
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from launch.agent import recovery
from launch.ends import End, Kind
from launch.runs import run_record
from launch.runs.failure import Failure, explain, failure_of, report
from launch.runs.last_output import crash_of, last_log_lines
from muster.worker.lost_peer import HAS_LEFT
from tests.fuzzing import fuzzed
from tests.launch.odd_messages import line, nearly
from tests.written import write
from train.distributed.exit_guard import PeerFailed

Files = dict[str, Any]
CAUSES = Path(__file__).with_name("causes.txt")

# -- what processes leave in a run folder ---------------------------------------------------------


def worker(rank: int, cause: str, message: str = "", traceback: str = "", **more: Any) -> Files:
    """A worker's own record of its end."""
    usual = {"host": f"node{rank}", "time_unix_s": 1.0, "code": 1}
    record = {"rank": rank, "cause": cause, "message": message, "traceback": traceback}
    return {f"exits/rank_{rank:05d}.json": usual | record | more}


def began(*ranks: int, err: str | bytes = "", out: str | bytes = "") -> Files:
    """The output of workers; its files exist once the workers have begun."""
    files = {f"workers/rank_{rank:05d}.err": err for rank in ranks}
    return files | {f"workers/rank_{rank:05d}.out": out for rank in ranks if out}


def agent(index: int, cause: str = "command", message: str = "", **more: Any) -> Files:
    """An agent's record of how its node ended; without `ends`, an earlier version wrote it."""
    usual = {"code": 1, "ranks": [index], "clock_offset_s": 0.0, "oom_kills": 0}
    record = {"index": index, "node": f"node{index}", "cause": cause, "message": message}
    return {f"agents/node_{index:05d}.exit.json": usual | record | more}


def saw(index: int, *ends: End, **more: Any) -> Files:
    """An agent's record with the ends that it has reported."""
    return agent(index, ends=[end.to_json() for end in ends], **more)


def node(index: int, **more: Any) -> Files:
    """An agent's record of its start."""
    usual = {"index": index, "node": f"node{index}", "address": f"10.10.1.{index + 1}"}
    return {f"agents/node_{index:05d}.json": usual | more}


def log(index: int, text: str) -> Files:
    return {f"agents/node_{index:05d}.log": text}


def inspection(name: str, *sentences: str, reports: Any = (), **more: Any) -> Files:
    return {f"stacks/{name}.json": {"sentences": sentences, "reports": reports} | more}


def ended(folder: Path, *records: Files, ranks: int = 2) -> Path:
    """Write these records to a run folder in which `ranks` ranks have begun, and return it."""
    for files in (began(*range(ranks)), *records):
        write(folder, files)
    return folder


def killed(rank: int, number: int = 9, at: float = 1.0) -> End:
    return End(Kind.KILLED, f"node{rank}", at, rank, signal=number)


def signalled(index: int, at: float) -> End:
    return End(Kind.SIGNAL, f"node{index}", at, signal=15)


# -- the table: what runs have left ---------------------------------------------------------------


def failure_in(
    folder: Path, *records: Files, ranks: int = 2, begun: int = 9, leader: End | None = None
) -> Failure | None:
    """Why a run with these records failed.

    `begun`: at most this many of its ranks have output files. `leader`: the cause given by the
    run's leader or the scheduler.
    """
    ended(folder, *records, ranks=min(begun, ranks))
    return explain(folder, ranks, 1, leader)


def run(*records: Files, **how: Any) -> tuple[tuple[Files, ...], dict[str, Any]]:
    """The arguments for `failure_in`."""
    return records, how


DOWN = "lost another worker"
CLOSED = f"{DOWN} (Connection closed by peer)"
LATE = f"{DOWN} (Timed out waiting 3000ms for recv operation to complete)"
GLOO = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:99. GLHF!"
FROM_JOB = End(Kind.JOB, "", 9.0, message="Slurm reports NODE_FAIL for job 7")
DUMP = "\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
EXITED = worker(1, "exit", "exit code 7", code=7)
DISK = "node1: /logs/run/agents/node_00001.exit.json: the disk is full, or your quota is used up"
EXIT = End(Kind.FAILED, "node0", 0.5, message="torchrun", ranks=(0,))
BY_CODE = End(Kind.PROGRAM, "node0", 2.0, 0, 7)
TERMINATED = {"pid": 7, "state": "", "signal": "SIGKILL", "survives": False}
LOG_OF_TORCHRUN = """\
E1121 03:17:26.197000 12250 /venv/torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""
LOG_OF_AGENT = f"""\
W1121 03:17:25.300000 12250 torch/distributed/run.py:803] Setting OMP_NUM_THREADS to 1
Traceback (most recent call last):
SyntaxError: invalid syntax
{LOG_OF_TORCHRUN}"""
NCCL = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: {}
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96

Fatal Python error: Aborted

Thread 0x00007f0000000000 (most recent call first):
  File "train.py", line 7 in step
"""
COLLECTIVE = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60011 milliseconds before timing out."
)
REMOTE = "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
# A rank's traceback in a collective; the line of the user's program is named.
LOST = f"""\
Traceback (most recent call last):
  File "/home/me/train.py", line 9, in main
    muster.record(3, loss=loss)
  File "/opt/muster/train/sync/ranks.py", line 81, in during
    return call(*given, **named)
  File "/x/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
    return func(*args, **kwargs)
  File "/x/site-packages/torch/distributed/distributed_c10d.py", line 5356, in barrier
    work.wait()
{GLOO}
"""
CHAIN = f"{LOST}\nThe above exception was the direct cause ...\n\nPeerFailed: ...\n"
LEFT = f"{PeerFailed.__name__}: rank 0 on vm has {HAS_LEFT}; ..."
ON_ONE_NODE = node(0, node="n", address="::1", muster="/opt/muster", ranks=[0, 1, 2])
CALLS = [f'  File "train.py", line {number}, in f' for number in range(20)]

RUNS = {
    # which rank, of several
    "the first failure that no other has caused": run(
        worker(0, "lost_peer", DOWN),
        worker(1, "crash", "boom", "Traceback: late\n", time_unix_s=3.0),
        worker(2, "signal", "stopped by SIGTERM", time_unix_s=0.5),
        worker(3, "crash", "bang", "Traceback: early\n", time_unix_s=2.0), ranks=4,
    ),
    "the earliest by one clock: node1's is ten seconds ahead": run(
        worker(0, "crash", "echo", "Traceback: second\n", time_unix_s=100.0),
        worker(1, "crash", "cause", "Traceback: first\n", time_unix_s=105.0),
        agent(0),
        agent(1, clock_offset_s=-10.0),
    ),
    "ranks that failed alike": run(
        *(worker(rank, "refused", "t.tsv:7: bad", code=2, time_unix_s=rank) for rank in range(4)),
        ranks=4,
    ),
    "ranks without a record, and not one that lost a peer": run(
        worker(1, "lost_peer", DOWN, "Traceback ..."),
        worker(3, "signal", "stopped by SIGTERM", code=143, time_unix_s=2.0), ranks=4,
    ),
    "ranks without a record, and not one to which gloo said so": run(
        worker(1, "crash", GLOO, "Traceback ..."),
        worker(3, "signal", "stopped by SIGTERM", code=143, time_unix_s=2.0), ranks=4,
    ),
    "ranks without a record, and not one to which `muster.init` said so": run(
        worker(1, "crash", f"{PeerFailed.__name__}: lost rank 2 on node2", "Traceback ..."),
        worker(3, "signal", "stopped by SIGTERM", code=143, time_unix_s=2.0), ranks=4,
    ),
    "a host that is several nodes": run(
        worker(0, "exit", "exit code 7", host="vm", code=7, time_unix_s=2.0),
        worker(1, "exit", "exit code 7", host="vm", code=7),
        saw(0),
        saw(1),
    ),
    # what a program did
    "a refusal has its own lines and code": run(
        worker(0, "refused", "train.tsv:7: bad\ndev.tsv: empty", code=2), ranks=1,
    ),
    "a KeyboardInterrupt without a signal is the program's": run(
        worker(0, "crash", GLOO, "Traceback: echo\n", time_unix_s=3.0),
        worker(1, "signal", "KeyboardInterrupt: ", "Traceback: KeyboardInterrupt\n", code=130),
    ),
    "a long traceback is cut to ten lines": run(
        worker(0, "crash", "ValueError: no", "\n".join(["Traceback", *CALLS, "ValueError: no"])),
        ranks=1,
    ),
    "torch without CUDA": run(
        worker(0, "crash", "AssertionError: Torch not compiled with CUDA enabled", "Traceback\n"),
        ranks=1,
    ),
    "torch without NCCL": run(
        worker(0, "crash", "RuntimeError: Distributed package doesn't have NCCL built in", "Tr\n"),
        ranks=1,
    ),
    "exit code 0 of a failure": run(worker(0, "exit", "exit code", code=0), ranks=1),
    "the end of an output": run(
        EXITED, began(1, err="cannot read data: /data/x missing\n\n", out="step 1\n"),
    ),
    "beside warnings, the reason may be on stdout": run(
        EXITED,
        began(1, err="UserWarning: old\n", out="\n".join([*map(str, range(9)), "cannot open"])),
    ),
    "what sys.exit() prints is printed once": run(
        worker(1, "exit", "no data"), began(1, err="a warning\nno data\n"),
    ),
    "what Muster prints is printed once": run(
        worker(1, "exit", "no data"), began(1, err="error: no data\n"),
    ),
    "an abort when Python ended, after a program that had ended well": run(
        worker(0, "done", code=0),
        began(0, err=f"terminate called without an active exception\n{DUMP[1:29]}"), ranks=1,
    ),
    "no such abort where another rank failed, even if only its exit code is known": run(
        worker(1, "done", code=0),
        began(1, err=DUMP),
        saw(0, End(Kind.PROGRAM, "node0", 5.0, 0, code=3)),
    ),
    # signals and memory
    "a killed rank, with what it has printed": run(
        *(worker(rank, "lost_peer", DOWN) for rank in (0, 2, 3)),
        began(1, err="allocating 900 GB\n"),
        saw(1, killed(1)), ranks=4,
    ),
    "a killed rank that no agent saw, with what it has printed": run(
        *(worker(rank, "lost_peer", DOWN) for rank in (0, 2, 3)),
        began(1, err="allocating 900 GB\n"),
    ),
    "memory, which the kernel has counted": run(
        worker(0, "lost_peer", DOWN), saw(1, killed(1), oom_kills=1),
    ),
    "a signal without a name, as some programs send each other": run(saw(1, killed(1, 40))),
    "a signal to every node, as when a job is cancelled": run(
        saw(0, signalled(0, 2.0)), saw(1, signalled(1, 3.0)),
    ),
    "a signal to every node, by an earlier version": run(
        agent(0, "signal", "node0 was sent SIGTERM", code=143),
        agent(1, "signal", "node1 was sent SIGTERM", code=143),
    ),
    "a signal to some nodes, after which programs may raise": run(
        saw(0),
        saw(1, signalled(1, 3.0)),
        saw(2, signalled(2, 4.0)),
        worker(1, "crash", "ValueError: 7", "Traceback", time_unix_s=5.0), ranks=3,
    ),
    "a signal to every node, after which a program raised": run(
        saw(0, signalled(0, 2.0)), saw(1, signalled(1, 3.0)),
        worker(0, "signal", "stopped by SIGTERM", code=143, time_unix_s=4.0),
        worker(1, "crash", "ValueError: 7", "Traceback: 7\n", time_unix_s=5.0),
    ),
    "an orderly stop, on a signal": run(
        *(worker(rank, "stopped", "stopped cleanly after step 3", code=75) for rank in (0, 1)),
        saw(0, signalled(0, 0.5)), saw(1, signalled(1, 0.6)),
    ),
    "an orderly stop of ranks, after which a node was lost": run(
        *(worker(rank, "stopped", "stopped cleanly after step 3", code=75) for rank in (0, 1)),
        saw(0, End(Kind.NODE_LOST, "node1", 7.0, address="10.0.0.2")),
    ),
    # nodes, starters and schedulers
    "a lost node, after which the scheduler sent signals": run(
        agent(0, "signal", "node0 was sent SIGTERM", code=143), node(0), node(1),
    ),
    "a lost node that a leader saw, before a signal and a lost peer": run(
        saw(0, signalled(0, 2.0), End(Kind.NODE_LOST, "node1", 7.0, address="10.0.0.2")),
        worker(0, "lost_peer", DOWN),
    ),
    "a starter that failed, and its rank was done": run(
        worker(0, "done", code=0), saw(0, EXIT), ranks=1,
    ),
    "a starter that failed after its rank had lost another": run(
        worker(0, "lost_peer", CLOSED, "Traceback ...\n"), saw(0, EXIT), ranks=1,
    ),
    "a scheduler's reason where no node has one": run(leader=FROM_JOB, begun=0),
    "a scheduler's reason where no node has begun": run(leader=FROM_JOB, ranks=0),
    "a scheduler's reason where the leader died": run(
        *(worker(rank, "signal", "stopped by SIGTERM", code=143) for rank in (0, 1)),
        *(saw(index, End(Kind.JOB, f"node{index}", 4.0)) for index in (0, 1)),
        leader=FROM_JOB,
    ),
    "a leader that died, where the scheduler says nothing": run(
        *(worker(rank, "signal", "stopped by SIGTERM", code=143) for rank in (0, 1)),
        *(saw(index, End(Kind.JOB, f"node{index}", 4.0)) for index in (0, 1)),
    ),
    # before the start
    "a worker that exits before it has output: its agent's log has what it printed": run(
        log(0, "Python path configuration:\n  PYTHONHOME = '/old'\nFatal Python error: no codec\n"),
        leader=End(Kind.PROGRAM, "node0", 1.0, 0, code=3), begun=0,
    ),
    "workers that never started: what is not torchrun's in the log": run(
        log(0, LOG_OF_AGENT), begun=0,
    ),
    "a log of torchrun alone is better than nothing": run(log(0, LOG_OF_TORCHRUN), begun=0),
    # a full disk
    "a full disk, on which no record had space": run(
        agent(0, "peer", "node1 is gone: its agent was killed"),
        agent(1, "command", "torchrun on node1 ended with exit code 1", full=DISK),
    ),
    "a full disk, where a rank has only an exit code": run(
        worker(1, "lost_peer", DOWN),
        saw(0, BY_CODE, End(Kind.FULL, "node0", 9.0, message="node0: /logs: the disk is full")),
    ),
    "a full disk of the leader, where a rank has only an exit code": run(
        saw(0, BY_CODE, End(Kind.FULL, "", 9.0, message="/logs: the disk is full")),
    ),
    "an exit code, where another node's disk is full": run(
        saw(0, BY_CODE),
        saw(1, End(Kind.FULL, "node1", 9.0, message="node1: /logs: the disk is full")),
    ),
    "an error with a reason, where a disk is full": run(
        worker(0, "crash", "ValueError: 7", "Traceback: 7\n", time_unix_s=4.0),
        saw(0, End(Kind.FULL, "", 9.0, message="/logs: the disk is full")), ranks=1,
    ),
    "an error of print() names no file: the disk that is full does": run(
        worker(0, "crash", "OSError: [Errno 28] No space left on device", "Traceback: full\n"),
        agent(0, full=DISK), ranks=1,
    ),
    # collectives
    "a hang for which the run was ended": run(
        worker(0, "signal", "stopped by SIGTERM", code=143),
        inspection(
            "hang", "rank 1 on node1 has not come", "rank 0 waits",
            on_hang="stop", text="no progress for 600 s: rank 1 on node1 has not come",
        ),
    ),
    "a hang of which the run was only warned is no cause": run(
        saw(1, killed(1)),
        inspection("hang", "rank 1 has not come", on_hang="warn", text="no progress for 600 s"),
    ),
    "a timeout, which only an inspection saw": run(
        worker(0, "crash", GLOO),
        inspection(
            "timeout", "rank 2 on node2 has not come",
            reports=[
                {"rank": 0},
                {"rank": 1, "gave_up": {"message": "RuntimeError: Timed out waiting 8000ms"}},
            ],
        ),
        ranks=4,
    ),
    "a rank that hung, and not that its agent killed it": run(
        worker(1, "lost_peer", LATE),
        worker(0, "lost_peer", CLOSED, time_unix_s=1.1),
        agent(0, "command", "torchrun on node0 ended with exit code 1"),
        agent(1, "command", "torchrun on node1 ended with exit code 1"),
        agent(
            2, "peer", "torchrun on node1 ended with exit code 1",
            terminated={2: TERMINATED | {"state": "had been stopped by a signal (SIGSTOP)"}},
        ),
        ranks=3,
    ),
    "ranks that hung, with the state of each": run(
        worker(0, "lost_peer", LATE),
        *(agent(rank, "peer", terminated={rank: TERMINATED}) for rank in (1, 2)), ranks=3,
    ),
    "a rank that was busy elsewhere: SIGTERM could end it, so that it has a record": run(
        worker(0, "lost_peer", LATE),
        worker(1, "signal", "stopped by SIGTERM", code=143, time_unix_s=2.0),
        agent(0),
        agent(1, "peer"),
    ),
    **{
        f"a rank that died, and none that its agent ended{version}": run(
            worker(0, "lost_peer", CLOSED),
            agent(0, "command", "torchrun on node0 ended with exit code 1"),
            agent(
                1, "command", "torchrun on node1 ended", ranks=[1, 2, 3],
                **{key: {2: TERMINATED, 3: TERMINATED | {"signal": "SIGTERM"}}},
            ),
            ranks=4,
        )
        for key, version in [("terminated", ""), ("ended", ", by an earlier version")]
    },
    "no rank that its agent ended, without a timeout; a lost peer's hidden traceback": run(
        worker(0, "crash", GLOO, f"Traceback ...\n{GLOO}\n"),
        agent(0, ranks=[0, 1], terminated={1: TERMINATED}),
    ),
    "a rank that NCCL aborted because a rank came late is no cause": run(
        began(0, err=NCCL.format(COLLECTIVE)), agent(0), agent(1, terminated={1: TERMINATED}),
    ),
    "a rank that NCCL aborted because it lost another is no cause": run(
        began(0, err=NCCL.format(REMOTE)), saw(1, killed(1, at=20.0)),
    ),
    "a rank that was aborted for an error of its own": run(
        began(0, err=NCCL.format("CUDA error: an illegal memory access was encountered")),
        worker(1, "lost_peer", DOWN),
    ),
    "ranks that left early, and where others wait": run(
        ON_ONE_NODE,
        worker(0, "crash", GLOO, LOST),
        *(worker(rank, "done", code=0, time_unix_s=0.5) for rank in (1, 2)), ranks=3,
    ),
    "a rank that left early, and where others wait": run(
        ON_ONE_NODE,
        *(worker(rank, "crash", GLOO, LOST) for rank in (0, 1)),
        worker(2, "done", code=0, time_unix_s=0.5), ranks=3,
    ),
    "a rank that left early, where no line is known": run(
        worker(0, "crash", GLOO, f"Traceback ...\n{GLOO}\n"),
        worker(1, "done", code=0, time_unix_s=0.5),
    ),
    "a rank that left init, whichever noticed it first, by its node's name": run(
        ON_ONE_NODE,
        worker(1, "crash", f"{PeerFailed.__name__}: lost rank 0 on vm, rank 2 on vm", CHAIN),
        worker(2, "crash", LEFT, CHAIN, time_unix_s=1.1),
        worker(0, "crash", LEFT, "Traceback\nclosed\n\nPeerFailed: ...", time_unix_s=1.2), ranks=3,
    ),
}  # fmt: skip


@pytest.fixture
def utc(monkeypatch):
    """Times are printed in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def recorded() -> dict[str, str]:
    """Return the recorded output of each run in `RUNS`, by its title."""
    scenes = re.split("^# ", CAUSES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {title: text for title, _, text in (scene.partition("\n") for scene in scenes)}


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("title", RUNS)
def test_records_have_one_cause_and_its_sentence(tmp_path, title, request):
    records, how = RUNS[title]
    folder = tmp_path / "run"
    failure = failure_in(folder, *records, **how)
    assert failure is not None
    first, *lines = report(failure, folder).replace(str(folder), "RUN").splitlines()
    assert first == "run folder: RUN"
    printed = "".join(f"  {line}".rstrip() + "\n" for line in lines)
    printed = f"{failure.code} {failure.cause}\n{printed}"
    if request.config.getoption("update"):
        scenes = recorded() | {title: printed}
        texts = (f"# {title}\n{scenes[title]}" for title in RUNS if title in scenes)
        CAUSES.write_text("".join(texts), encoding="utf-8")
    else:
        assert printed == recorded().get(title)


def test_run_whose_ranks_are_done_has_no_failure(tmp_path):
    ended(tmp_path, worker(0, "done", code=0), worker(1, "done", code=0))
    assert explain(tmp_path, 2) is None


def test_the_log_of_the_agent_that_failed_first_is_shown(tmp_path):
    for index, (text, time_s) in enumerate([("stopped\n", 30), ("", 10), (LOG_OF_AGENT, 20)]):
        ((name, _),) = log(index, text).items()
        os.utime(write(tmp_path, log(index, text)) / name, (time_s, time_s))
    assert explain(tmp_path, 2).text.endswith("\nSyntaxError: invalid syntax")


@pytest.mark.timeout(60)
def test_fifo_instead_of_record_or_output_counts_as_none(tmp_path):
    """A process that opened it would wait for a writer forever."""
    ended(tmp_path, worker(1, "crash", "boom", "Traceback: boom\n"))
    (tmp_path / "workers" / "rank_00000.err").unlink()
    (tmp_path / "agents").mkdir()
    for name in ("exits/rank_00000.json", "workers/rank_00000.err", "agents/node_00000.log"):
        os.mkfifo(tmp_path / name)
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and failure.text == "Traceback: boom"
    assert crash_of(tmp_path / "workers" / "rank_00000.err") is None
    assert last_log_lines([tmp_path / "agents" / "node_00000.log"]) is None


@pytest.mark.parametrize("text", ["", '{"rank": 0, ', "null"])
def test_a_record_that_is_not_whole_counts_as_none(tmp_path, text):
    ended(tmp_path, worker(1, "crash", "boom", "Traceback: boom\n"))
    files = ["exits/rank_00000.json", "agents/node_00000.exit.json", "agents/node_00000.json"]
    files += ["stacks/hang.json", "stacks/timeout.json", "stacks/end.json"]
    write(tmp_path, dict.fromkeys(files, text))
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and failure.text == "Traceback: boom"


DMESG = "the kernel may have killed it because memory ran out: see dmesg on node1"


def test_cause_that_a_leader_recorded_stays(tmp_path):
    """For a command that waits for a Slurm job: its records may be less complete, or come later."""
    ended(tmp_path, worker(0, "crash", "echo", "Traceback: echo\n"))
    end = killed(1, at=2.0)
    record = {"code": 137, "message": f"error: {end.text}", "rank": 1, "cause": "killed"}
    failure = failure_of(tmp_path, 2, {**record, "end": end.to_json()})
    assert (failure.code, failure.rank, failure.cause) == (137, 1, "killed")
    assert failure.text == "error: rank 1 on node1 was killed by SIGKILL"
    assert failure.context == ("this stopped rank 0", DMESG)


@pytest.mark.parametrize("end", [None, "killed", {"kind": "KILLED"}])
def test_an_earlier_version_s_record_of_the_end_stays_readable(tmp_path, end):
    record = {"code": 137, "message": "error: it was killed", "rank": 1, "cause": "killed"}
    failure = failure_of(tmp_path, 2, {**record, "end": end})
    assert failure == Failure(137, "error: it was killed", rank=1, cause="killed")
    assert failure_of(tmp_path, 2, {**record, "code": 0}) is None


def test_only_the_end_of_a_long_output_is_read(tmp_path):
    """A rank that dies prints its dump last."""
    errors = tmp_path / "rank_00000.err"
    with errors.open("ab") as file:
        file.truncate(2_000_000_000)  # a hole, which takes no space
        file.seek(0, 2)
        file.write(DUMP.encode())
    tracemalloc.start()
    assert crash_of(errors).code == 134
    assert "\nFatal Python error: Aborted\n" in last_log_lines([errors])[1]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000_000


CRASHED = worker(0, "crash", "ValueError: 7", "Traceback ...", pid=7)
SENT_SIGINT = {
    "noticed_unix_s": 8.0,
    "full": "",
    "terminated": {"0": {**TERMINATED, "signal": "SIGTERM", "survives": True}},
}


RANK_ENDS = (CRASHED, worker(0, "done"))


@fuzzed(nearly([[*rank.values(), *end.values()] for rank in RANK_ENDS for end in (
    agent(0, "signal", "was sent SIGINT", code=130, **SENT_SIGINT),
    saw(0, killed(0), **SENT_SIGINT),
    agent(0, "peer", **SENT_SIGINT),
)]))  # fmt: skip
def test_random_records_of_a_node_have_a_cause(records):
    names = ["exits/rank_00000.json", "agents/node_00000.exit.json"]
    with TemporaryDirectory() as folder:
        run_dir = write(Path(folder), began(0) | dict.fromkeys(names, ""))
        for name, record in zip(names, records if isinstance(records, list) else [], strict=False):
            (run_dir / name).write_bytes(line(record, b""))
        failure = explain(run_dir, 1, 1, FROM_JOB)
        assert failure.code and failure.cause and isinstance(failure.text, str)
        assert all(isinstance(one, str) for one in failure.context)
        run_record.unconnected_workers_line(run_dir)
        recovery.recorded_fault_unix_s(run_dir, 2)
        recovery.report(run_dir, 2, 8.0, has_output=True, clock_offset_s=0.0)


@pytest.mark.parametrize(
    ("path", "leaves"),
    [
        ("../data/x.csv", True),
        ("RUN/data/x.csv", True),
        ("data/x.csv", False),
        ("/x/y", False),
        ("a/../x.csv", False),
    ],
)
def test_a_path_that_leaves_the_copied_project_is_explained(tmp_path, path, leaves):
    path = path.replace("RUN", str(tmp_path))
    message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    ended(tmp_path, worker(0, "crash", message, "Traceback: missing\n"))
    assert len(explain(tmp_path, 1).context) == 1  # the project was not copied
    write(tmp_path, {"snapshot.json": {"project": "/home/me/p", "commit": "", "files": []}})
    first, *more = explain(tmp_path, 1).context
    assert bool(more) == leaves == ("--no-snapshot" in first)


# -- which part of an output is printed, and what was printed before -------------------------------


def last_lines(folder: Path, shown: bytes = b"") -> list[str]:
    """Return the lines that are printed about the run after `shown`, without its folder."""
    return report(explain(folder, 2, 1), folder, shown).splitlines()[1:]


@pytest.mark.parametrize(
    ("stderr", "lines"),
    [
        (b"", []),
        (b"\n \n", []),
        (b"".join(b"%d\n" % number for number in range(1000)), [*map(str, range(980, 1000))]),
        (b"\x1b[2J\x1b]0;title\x07red\xff\xc3\x28", [r"\x1b[2J\x1b]0;title\x07red\xff\xc3("]),
        (b" 10%|#   |\r 20%|##  |\r 30%|### |\nbad\r\n", [" 30%|### |", "bad"]),
        (b"(a consequence) error: lost rank 0\nown\n", ["own"]),
        (b"\r 10%(a consequence) Traceback\n(a consequence) lost\n", [" 10%"]),
        (b"a" * 1_000_000 + b"z\nb\n", ["a" * 200 + " ... " + "a" * 199 + "z", "b"]),
        ("\u2028\x85ü".encode(), [r"\u2028\x85ü"]),
    ],
)
def test_shown_output_is_short_and_moves_no_cursor(tmp_path, stderr, lines):
    ended(tmp_path, EXITED, began(1, err=stderr, out="from stdout\n"))
    _, *rest = last_lines(tmp_path)
    assert rest[1:-1] == [f"  {line}" for line in ["from stdout", *lines][-20:]]


def test_end_of_output_in_a_record_is_short(tmp_path):
    ended(tmp_path, EXITED, began(1, err=b"\n".join([b"x" * 390] * 30)))
    assert 3_000 < len(explain(tmp_path, 2, 1).output) < 4_001


def test_output_that_was_shown_is_not_printed_again(tmp_path):
    ended(tmp_path, EXITED, began(1, err="\x1b[31mno data\n"))
    last = f"all of its output: muster jobs logs {tmp_path.name} --rank 1"
    assert last_lines(tmp_path, b"step 1\n\x1b[31mno data\nstep 2\n")[1:] == [last]
    assert "  \\x1b[31mno data" in last_lines(tmp_path, b"no data\n")


TRACEBACK = "Traceback (most recent call last):\n  File 'a.py'\nValueError: bad 42\n"


@pytest.mark.usefixtures("utc")
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])  # torch's
def test_a_traceback_that_was_shown_is_named_in_one_line(tmp_path, prefix):
    records = [worker(rank, "crash", "ValueError: bad 42", TRACEBACK) for rank in (0, 1)]
    ended(tmp_path, *records, began(0, err=TRACEBACK))
    _, *whole = last_lines(tmp_path)
    assert whole[1:-1] == TRACEBACK.splitlines()
    shown = "".join(f"{prefix}{line}\n" for line in TRACEBACK.splitlines())
    assert last_lines(tmp_path, f"step 1\n{shown}".encode()) == [
        "rank 1 failed in the same way",
        "error: rank 0 on node0 failed at 00:00:01: ValueError: bad 42",
        whole[-1],
    ]


def test_orderly_stop_prints_nothing_twice(tmp_path):
    stopped = Failure(75, "stopped cleanly after step 3")
    assert report(stopped, tmp_path, b"step 3\nstopped cleanly after step 3\n") == ""
    assert "stopped cleanly" in report(stopped, tmp_path, b"step 3\n")
