"""What an agent reports about its workers and their starter, tested with values alone."""

from dataclasses import replace

import pytest

from launch.agent.agent import Ending, write_exit
from launch.agent.processes.process_tree import TerminatedProcess
from launch.agent.processes.workers import (
    Workload,
    ends_of_processes,
    ends_of_starter,
    ends_of_workers,
)
from launch.ends import End, Kind, StarterEnd, WorkerEnd, cause_of
from launch.runs.end_facts import EndFacts, ends_on_disk
from muster.run_files import AGENT_END
from muster.writing import read_json
from tests.launch.pretended import assignment
from tests.written import write


@pytest.fixture
def node(tmp_path):
    """The assignment of a node with two workers, one of which has begun."""
    write(tmp_path, {"workers/rank_00000.err": ""})
    return replace(assignment(tmp_path), ranks=(0, 1))


def crash(rank, time_unix_s=8.0):
    record = {"rank": rank, "host": "vm", "time_unix_s": time_unix_s, "code": 1, "cause": "crash"}
    return record | {"message": "ValueError: 7", "traceback": "Traceback ..."}


def test_worker_end_comes_from_its_record_or_else_starter(node, tmp_path):
    write(tmp_path, {"exits/rank_00000.json": crash(0)})
    ends = ends_of_workers(node, [WorkerEnd(0, 1, None, 9.0), WorkerEnd(1, None, 9, 9.0)], 100.0)
    assert [(end.kind, end.rank, end.time_unix_s) for end in ends] == [
        (Kind.PROGRAM, 0, 108.0),
        (Kind.KILLED, 1, 109.0),
    ]
    assert {end.node for end in ends} == {"node0"}


RAISED = End(Kind.PROGRAM, "node0", 8.0, 0)
DONE = End(Kind.DONE, "node0", 8.0, 0, 0)
EXIT, KILL = StarterEnd("torchrun", 1, None, 9.0), StarterEnd("torchrun", None, 9, 9.0)


@pytest.mark.parametrize(
    ("starter", "workers", "text"),
    [
        (EXIT, [RAISED], ""),  # torchrun only reports that a worker failed
        (EXIT, [DONE], "torchrun on node0 ended with exit code 1"),
        (EXIT, [], "torchrun on node0 ended with exit code 1"),
        (KILL, [RAISED], "torchrun on node0 was killed by SIGKILL (ranks 0, 1)"),
    ],
)
def test_starter_end_is_reported_where_worker_ends_explain_less(node, starter, workers, text):
    assert "".join(end.text for end in ends_of_starter(node, starter, workers, 0.0)) == text


def test_workers_that_never_began_have_another_end_than_those_that_did(node, tmp_path):
    (end,) = ends_of_starter(node, EXIT, [], 0.0)
    assert end.kind is Kind.FAILED
    (tmp_path / "workers" / "rank_00000.err").unlink()
    (end,) = ends_of_starter(node, EXIT, [], 0.0)
    assert (end.kind, end.ranks) == (Kind.NOT_STARTED, (0, 1))


def test_worker_that_agent_ended_without_record_is_named_with_state(node, tmp_path):
    write(tmp_path, {"exits/rank_00000.json": crash(0)})
    held = TerminatedProcess(7, 1, "was held by a debugger", survives=True)
    processes = [
        TerminatedProcess(6, 0, ""),
        held,
        TerminatedProcess(8, None, ""),
        TerminatedProcess(9, 5, ""),
    ]
    (end,) = ends_of_processes(node, processes)
    text = "rank 1 on node0 was held by a debugger and could not be ended (pid 7)"
    assert (end.kind, end.text) == (Kind.UNRECORDED, text)


def test_records_of_a_node_have_the_agents_values(node, tmp_path):
    """An end that the worker itself has recorded is not written twice."""
    write(tmp_path, {"exits/rank_00000.json": crash(0)})
    ends = ends_of_workers(node, [WorkerEnd(1, None, 9, 9.0)], 100.0)
    assert write_exit(node, Ending(1, "command", "", ends=tuple(ends)), 100.0, [], 0) == ""
    record = read_json(AGENT_END.path(tmp_path, node=0))
    assert [End.from_json(value) for value in record["ends"]] == ends[1:]
    assert set(ends_on_disk(EndFacts(tmp_path, 2))) == set(ends)


# What a thread of NCCL's process group prints as it aborts its worker, and then faulthandler.
ABORT = """\
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with \
exception: {why}
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:632
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96

Fatal Python error: Aborted

Thread 0x00007f0000000000 (most recent call first):
  File "train.py", line 7 in step
"""
LATE = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, "
    "NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60011 milliseconds before timing out."
)
LOST = "NCCL error: remote process exited or there was a network error, NCCL version 2.21.5"
OWN = "CUDA error: an illegal memory access was encountered"


@pytest.fixture
def aborted(node, tmp_path):
    """The ends of this node after the worker of rank 0 was aborted with a given message."""

    def aborted(why):
        (tmp_path / "workers" / "rank_00000.err").write_text(ABORT.format(why=why))
        workload = Workload(node, [])
        reports = [WorkerEnd(0, None, 6, 9.0)]
        workload._write_ends(reports)
        return ends_of_workers(node, reports, 0.0)

    return aborted


@pytest.mark.parametrize(
    ("why", "kind"), [(LATE, Kind.LOST_PEER), (LOST, Kind.LOST_PEER), (OWN, Kind.KILLED)]
)
def test_worker_aborted_by_nccl_for_lost_peer_is_no_cause(aborted, why, kind):
    (end,) = aborted(why)
    assert (end.kind, end.exit_code, end.waited_in_vain) == (kind, 134, why == LATE)
    if kind is not Kind.KILLED:
        assert end.message.endswith(why)
        rank_1 = End(Kind.KILLED, "node1", 20.0, 1, signal=9)
        if why == LATE:
            rank_1 = End(Kind.UNRECORDED, "node1", 20.0, 1, message="hung")
        assert cause_of([end, rank_1]) is rank_1
