"""The cause of a failed run is told from its echoes."""

import json
import os
import re
import time
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from launch.agent import recovery
from launch.ends import End, Kind
from launch.runs import run_record
from launch.runs.failure import Failure, explain, failure_of, report
from launch.runs.last_output import crash_of, of_logs
from muster.worker.lost_peer import HAS_LEFT
from tests.fuzzing import fuzzed
from tests.launch.odd_messages import line, nearly
from tests.written import write
from train.distributed.exit_guard import PeerFailed

AGENT_LOG = """\
W1121 03:17:25.300000 12250 torch/distributed/run.py:803] Setting OMP_NUM_THREADS to 1
Traceback (most recent call last):
SyntaxError: invalid syntax
E1121 03:17:26.197000 12250 /venv/torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""


CLOCK = time.strftime("%H:%M:%S", time.localtime(2.0))


@pytest.fixture
def ended(tmp_path):
    write(tmp_path, {f"workers/rank_{rank:05d}.err": "" for rank in range(4)})

    def ended(rank, cause, time_unix_s, message="", traceback="", code=1):
        record = {"rank": rank, "host": f"node{rank}", "cause": cause, "message": message}
        record |= {"traceback": traceback, "time_unix_s": time_unix_s, "code": code}
        return write(tmp_path, {f"exits/rank_{rank:05d}.json": record})

    return ended


def test_missing_record_on_full_disk_is_reported_as_disk_full(tmp_path):
    write(tmp_path, {f"workers/rank_{rank:05d}.err": "" for rank in range(2)})
    full = "node1: /logs/run/agents/node_00001.exit.json: the disk is full, or your quota on it"
    agent(tmp_path, 0, "peer", "node1 is gone: its agent was killed", full="")
    agent(tmp_path, 1, "command", "torchrun on node1 ended with exit code 1", full=full)
    failure = explain(tmp_path, 2)
    assert (failure.code, failure.cause, failure.text) == (1, "disk_full", f"error: {full}")


def test_worker_that_exits_before_it_has_output_is_explained(tmp_path):
    """Its agent's log has what it printed."""
    log = "Python path configuration:\n  PYTHONHOME = '/old'\nFatal Python error: no codec\n"
    write(tmp_path, {"agents/node_00000.log": log})
    failure = explain(tmp_path, 1, 1, End(Kind.PROGRAM, "node0", 1.0, 0, code=3))
    assert (failure.code, failure.cause) == (3, "not_started")
    assert failure.context[0].endswith(
        f"failed before the start; the end of {tmp_path}/agents/node_00000.log:"
    )
    hint = "PYTHONHOME=/old does not fit this Python; unset it"
    assert failure.text.splitlines()[-2:] == ["Fatal Python error: no codec", hint]


def test_abort_at_exit_is_no_cause_where_another_rank_failed(ended, tmp_path):
    """Not even if only the exit code of that rank is known."""
    ended(1, "done", 1.0, code=0)
    aborted = "\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
    write(tmp_path, {"workers/rank_00001.err": aborted})
    assert crash_of(tmp_path / "workers" / "rank_00001.err") is not None
    end = End(Kind.PROGRAM, "node0", 5.0, 0, code=3)
    agent(tmp_path, 0, "command", end.text, ends=[end.to_json()])
    assert explain(tmp_path, 2).code == 3


def test_run_whose_ranks_are_done_has_no_failure(ended):
    ended(0, "done", 1.0, code=0)
    assert explain(ended(1, "done", 2.0, code=0), 2) is None


@pytest.mark.timeout(60)
def test_fifo_instead_of_record_or_output_counts_as_none(ended, tmp_path):
    """Whoever opened it would wait for its writer for good."""
    ended(1, "crash", 1.0, "boom", "Traceback: boom\n")
    (tmp_path / "workers" / "rank_00000.err").unlink()
    (tmp_path / "agents").mkdir()
    for name in ("exits/rank_00000.json", "workers/rank_00000.err", "agents/node_00000.log"):
        os.mkfifo(tmp_path / name)
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and failure.text == "Traceback: boom"
    assert crash_of(tmp_path / "workers" / "rank_00000.err") is None
    assert of_logs([tmp_path / "agents" / "node_00000.log"]) is None


@pytest.mark.parametrize("text", ["", '{"rank": 0, ', "null"])
def test_a_record_that_is_not_whole_counts_as_none(ended, tmp_path, text):
    ended(1, "crash", 1.0, "boom", "Traceback: boom\n")
    files = ["exits/rank_00000.json", "agents/node_00000.exit.json", "agents/node_00000.json"]
    files += ["stacks/hang.json", "stacks/timeout.json", "stacks/end.json"]
    write(tmp_path, dict.fromkeys(files, text))
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and failure.text == "Traceback: boom"


def test_first_failure_with_a_cause_of_its_own_is_the_cause(ended):
    ended(0, "lost_peer", 1.0, "lost another worker")
    ended(1, "crash", 3.0, "boom", "Traceback: late\n")
    ended(2, "signal", 0.5, "stopped by SIGTERM")
    failure = explain(ended(3, "crash", 2.0, "bang", "Traceback: early\n"), 4)
    assert failure.text == "Traceback: early"
    first = f"error: rank 3 on node3 failed first, at {CLOCK}"
    assert failure.context == (f"{first}; the others stopped because of it:",)


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("lost_peer", "lost another worker"),
        ("crash", "RuntimeError: Connection closed by peer [10.0.0.2]:99"),
        ("crash", f"{PeerFailed.__name__}: lost rank 2 on node2"),  # of `muster.init`
    ],
)
def test_killed_ranks_are_the_cause_and_those_that_noticed_are_not(ended, tmp_path, cause, message):
    ended(1, cause, 1.0, message, "Traceback ...")
    failure = explain(ended(3, "signal", 2.0, "stopped by SIGTERM"), 4)
    assert failure.code == 137 and failure.context[0] == "ranks 1, 3 stopped because of it"
    assert failure.text.startswith("error: ranks 0, 2 ended without a message")
    assert failure.rank == 0


def test_a_refusal_is_its_own_lines_and_code(ended):
    failure = explain(ended(0, "refused", 1.0, "train.tsv:7: bad\ndev.tsv: empty", code=2), 1)
    assert failure.code == 2
    assert failure.text == "error: train.tsv:7: bad\nerror: dev.tsv: empty"


def test_log_of_the_agent_is_shown_where_workers_never_started(tmp_path):
    """The log of the agent that failed first, and of that not what torchrun says after it."""
    for node, (log, time_s) in enumerate([("stopped\n", 30), ("", 10), (AGENT_LOG, 20)]):
        name = f"agents/node_{node:05d}.log"
        os.utime(write(tmp_path, {name: log}) / name, (time_s, time_s))
    failure = explain(tmp_path, 2)
    assert failure.code == 1 and "ranks 0, 1 failed before the start" in failure.context[0]
    assert failure.text == "Traceback (most recent call last):\nSyntaxError: invalid syntax"


def test_a_log_of_torchrun_alone_is_better_than_nothing(tmp_path):
    report = "".join(AGENT_LOG.splitlines(keepends=True)[3:])
    write(tmp_path, {"agents/node_00000.log": report})
    assert explain(tmp_path, 1).text == report.strip()


def agent(folder, index, cause, message="", **more):
    record = {"index": index, "node": f"node{index}", "cause": cause, "message": message}
    usual = {"code": 1, "ranks": [index], "clock_offset_s": 0.0, "oom_kills": 0}
    write(folder, {f"agents/node_{index:05d}.exit.json": record | usual | more})


def killed(folder, rank, number=9, **more):
    """The agent of a rank's node has seen that a signal ended it."""
    end = End(Kind.KILLED, f"node{rank}", 1.0, rank, signal=number)
    agent(folder, rank, "command", end.text, ends=[end.to_json()], **more)


def test_the_earliest_is_told_by_one_clock(ended, tmp_path):
    """node1's clock is ten seconds ahead: what it wrote later happened first."""
    ended(0, "crash", 100.0, "echo", "Traceback: second\n")
    ended(1, "crash", 105.0, "cause", "Traceback: first\n")
    agent(tmp_path, 0, "command")
    agent(tmp_path, 1, "command", clock_offset_s=-10.0)
    assert explain(tmp_path, 2, 1).text == "Traceback: first"


def test_timeout_seen_only_in_stacks_is_named_as_cause(ended):
    folder = ended(0, "crash", 2.0, "RuntimeError: Connection closed by peer [10.0.0.2]:99")
    assert explain(folder, 4).cause != "timeout"
    gave_up = {"rank": 1, "gave_up": {"message": "RuntimeError: Timed out waiting 8000ms"}}
    seen = {"sentences": ["rank 2 on node2 has not come"], "reports": [{"rank": 0}, gave_up]}
    write(folder, {"stacks/timeout.json": seen})
    failure = explain(folder, 4)
    assert (failure.cause, failure.text) == ("timeout", "error: rank 2 on node2 has not come")
    assert failure.context[0] == "rank 1: RuntimeError: Timed out waiting 8000ms"


def test_ranks_that_failed_alike_are_one_failure(ended):
    for rank in range(4):
        ended(rank, "refused", float(rank), "train.tsv:7: unknown label", code=2)
    failure = explain(ended(3, "refused", 9.0, "train.tsv:7: unknown label", code=2), 4)
    assert failure.text == "error: train.tsv:7: unknown label"
    assert failure.context == ("ranks 1, 2, 3 failed in the same way",)


def test_the_kernels_word_on_memory_is_passed_on(ended, tmp_path):
    ended(0, "lost_peer", 1.0, "lost another worker")
    killed(tmp_path, 1, oom_kills=1)
    why = "out of memory on node1: the kernel killed it for that"
    assert explain(tmp_path, 2, 1).text == f"error: rank 1 on node1 was killed by SIGKILL; {why}"


def test_a_worker_that_a_signal_without_a_name_killed_is_explained(tmp_path):
    """A real-time signal, as some programs send each other."""
    killed(tmp_path, 1, number=40)
    failure = explain(tmp_path, 2, 1)
    assert failure.code == 168
    assert failure.text == "error: rank 1 on node1 was killed by signal 40"


def test_a_job_that_was_cancelled_was_stopped(tmp_path):
    for index in range(2):
        agent(tmp_path, index, "signal", f"node{index} was sent SIGTERM", code=143)
    failure = explain(tmp_path, 2, 143)
    assert (failure.code, failure.text) == (143, "error: stopped by SIGTERM")


def test_killed_node_is_named_though_scheduler_signalled_first(tmp_path):
    agent(tmp_path, 0, "signal", "node0 was sent SIGTERM", code=143)
    for index in range(2):
        here = {"index": index, "node": f"node{index}", "address": f"10.10.1.{index + 1}"}
        write(tmp_path, {f"agents/node_{index:05d}.json": here})
    failure = explain(tmp_path, 2, 143)
    assert failure.code == 1 and failure.text.startswith("error: node1 (10.10.1.2) is gone")


def test_launchers_reason_is_shown_where_no_node_has_one(tmp_path):
    of_job = End(Kind.JOB, "", 9.0, message="Slurm says NODE_FAIL of job 7")
    for world_size in (0, 2):
        failure = explain(tmp_path, world_size, 1, of_job)
        assert failure.code == 1 and failure.text.endswith("Slurm says NODE_FAIL of job 7")


def test_schedulers_word_is_shown_where_the_leader_died(ended, tmp_path):
    of_job = End(Kind.JOB, "", 9.0, message="Slurm says NODE_FAIL of job 7")
    for rank in range(2):
        ended(rank, "signal", 5.0, "stopped by SIGTERM", code=143)
        end = End(Kind.JOB, f"node{rank}", 4.0)
        agent(tmp_path, rank, "launcher", end.text, ends=[end.to_json()])
    failure = explain(tmp_path, 2, 1, of_job)
    assert (failure.cause, failure.text) == ("job", "error: Slurm says NODE_FAIL of job 7")
    assert explain(tmp_path, 2, 1).text == "error: node0 lost its launcher"


def test_rank_is_named_by_node_where_nodes_share_host(ended, tmp_path):
    for rank in range(2):
        ended(rank, "exit", 2.0 - rank, "exit code 7", code=7)
        record = json.loads((tmp_path / f"exits/rank_{rank:05d}.json").read_text())
        write(tmp_path, {f"exits/rank_{rank:05d}.json": {**record, "host": "vm"}})
        agent(tmp_path, rank, "command", ends=[])
    assert explain(tmp_path, 2, 1).text == "error: rank 1 on node1: exit code 7"


def test_cause_that_a_leader_recorded_stays(ended, tmp_path):
    """By who waits for a Slurm job: there the records may say less, or come later."""
    ended(0, "crash", 1.0, "echo", "Traceback: echo\n")
    end = End(Kind.KILLED, "node1", 2.0, 1, signal=9)
    record = {"code": 137, "message": f"error: {end.text}", "rank": 1, "cause": "killed"}
    failure = failure_of(tmp_path, 2, {**record, "end": end.to_json()})
    assert (failure.code, failure.rank, failure.cause) == (137, 1, "killed")
    assert failure.text == "error: rank 1 on node1 was killed by SIGKILL"
    assert failure.context == ("rank 0 stopped because of it", ADVICE)


@pytest.mark.parametrize("end", [None, "killed", {"kind": "KILLED"}])
def test_an_earlier_version_s_record_of_the_end_stays_readable(tmp_path, end):
    record = {"code": 137, "message": "error: it was killed", "rank": 1, "cause": "killed"}
    failure = failure_of(tmp_path, 2, {**record, "end": end})
    assert failure == Failure(137, "error: it was killed", rank=1, cause="killed")
    assert failure_of(tmp_path, 2, {**record, "code": 0}) is None


ADVICE = "the kernel may have ended it for lack of memory: see dmesg on node1"
TIMED_OUT = "lost another worker (Timed out waiting 3000ms for recv operation to complete)"


def victim(state="", number="SIGKILL"):
    return {"pid": 7, "state": state, "signal": number, "survives": False}


def test_hung_rank_is_named_as_cause_instead_of_our_kill(ended, tmp_path):
    ended(1, "lost_peer", 1.0, TIMED_OUT)
    ended(0, "lost_peer", 1.1, "lost another worker (Connection closed by peer)")
    for index in (0, 1):
        agent(tmp_path, index, "command", f"torchrun on node{index} ended with exit code 1")
    how = {2: victim("had been stopped, as by SIGSTOP")}
    agent(tmp_path, 2, "peer", "torchrun on node1 ended with exit code 1", terminated=how)
    failure = explain(tmp_path, 3, 1)
    assert failure.code == 1
    assert failure.text == (
        "error: rank 2 on node2 had been stopped, as by SIGSTOP: rank 1 waited for it and timed "
        "out; see --timeout-s"
    )
    assert failure.context == (f"rank 1: {TIMED_OUT}",)


def test_a_rank_that_was_busy_elsewhere_is_named(ended, tmp_path):
    """SIGTERM could end it, so that it wrote down how it ended."""
    ended(0, "lost_peer", 1.0, TIMED_OUT)
    ended(1, "signal", 2.0, "stopped by SIGTERM", code=143)
    for index, cause in enumerate(["command", "peer"]):
        agent(tmp_path, index, cause, "torchrun on node0 ended with exit code 1")
    failure = explain(tmp_path, 2, 1)
    assert failure.text.startswith("error: rank 1 on node1 was busy elsewhere: rank 0 waited for")


@pytest.mark.parametrize("key", ["terminated", "ended"])  # the latter by older versions
def test_rank_that_died_is_distinguished_from_ended_ranks(ended, tmp_path, key):
    ended(0, "lost_peer", 1.0, "lost another worker (Connection closed by peer)")
    agent(tmp_path, 0, "command", "torchrun on node0 ended with exit code 1")
    how = {2: victim(), 3: victim(number="SIGTERM")}
    agent(tmp_path, 1, "command", "torchrun on node1 ended", ranks=[1, 2, 3], **{key: how})
    failure = explain(tmp_path, 4, 1)
    assert failure.code == 137 and failure.text.startswith("error: rank 1 ended without a message")


@pytest.mark.parametrize(("kills", "then"), [(0, ""), (1, "; out of memory on node0: the kernel ")])
def test_memory_is_the_cause_only_where_the_kernel_has_counted_it(tmp_path, kills, then):
    message = "rank 0 on node0 was killed by SIGKILL"
    killed(tmp_path, 0, oom_kills=kills)
    failure = explain(tmp_path, 1, 1)
    assert failure.text.startswith(f"error: {message}{then}")
    assert failure.cause == ("out_of_memory" if kills else "killed")
    advice = "the kernel may have ended it for lack of memory: see dmesg on node0"
    assert failure.context == (() if kills else (advice,))


@pytest.mark.parametrize("code", [0, 256])
def test_a_failure_has_no_exit_code_of_a_success(ended, tmp_path, code):
    failure = explain(ended(0, "exit", 1.0, "exit code", code=code), 1)
    assert failure.code % 256


def test_only_the_end_of_a_long_output_is_read(ended, tmp_path):
    """The dump of a rank that died is the last that it prints."""
    errors = tmp_path / "workers" / "rank_00000.err"
    with errors.open("ab") as file:
        file.truncate(2_000_000_000)  # a hole, which takes no space
        file.seek(0, 2)
        file.write(
            b"\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        )
    tracemalloc.start()
    assert crash_of(errors).code == 134
    assert "\nFatal Python error: Aborted\n" in of_logs([errors])[1]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100_000_000


END = {"rank": 0, "host": "node0", "pid": 7, "time_unix_s": 8.0, "code": 1, "cause": "crash"}
END |= {"message": "ValueError: 7", "traceback": "Traceback ..."}
AGENT_END = {
    "index": 0,
    "node": "node0",
    "code": 130,
    "cause": "signal",
    "message": "was sent SIGINT",
}
AGENT_END |= {
    "ranks": [0],
    "clock_offset_s": 0.0,
    "noticed_unix_s": 8.0,
    "oom_kills": 0,
    "full": "",
}
KILLED_END = End(Kind.KILLED, "node0", 8.0, 0, signal=9)
AGENT_END["terminated"] = {
    "0": {"pid": 8, "rank": 0, "state": "", "signal": "SIGTERM", "survives": True}
}


@fuzzed(nearly([[end, agent_end] for end in (END, {**END, "cause": "done"}) for agent_end in (
    AGENT_END,
    {**AGENT_END, "cause": "command", "ends": [KILLED_END.to_json()]},
    {**AGENT_END, "cause": "peer", "message": ""},
)]))  # fmt: skip
def test_random_records_of_a_node_have_a_cause(records):
    names = ["exits/rank_00000.json", "agents/node_00000.exit.json"]
    with TemporaryDirectory() as folder:
        run_dir = write(Path(folder), {"workers/rank_00000.err": "", **dict.fromkeys(names, "")})
        for name, record in zip(names, records if isinstance(records, list) else [], strict=False):
            (run_dir / name).write_bytes(line(record, b""))
        failure = explain(
            run_dir, 1, 1, End(Kind.JOB, "", 9.0, message="Slurm says FAILED of job 7")
        )
        assert failure.code and failure.cause and isinstance(failure.text, str)
        assert all(isinstance(one, str) for one in failure.context)
        run_record.each_ran_alone(run_dir)
        recovery.recorded_fault_unix_s(run_dir, 2)
        recovery.report(run_dir, 2, 8.0, has_output=True, clock_offset_s=0.0)


def test_without_a_time_out_whom_we_ended_is_no_cause(ended, tmp_path):
    ended(0, "lost_peer", 1.0, "lost another worker (Connection closed by peer)")
    agent(tmp_path, 0, "command", "torchrun on node0 ended", ranks=[0, 1], terminated={1: victim()})
    failure = explain(tmp_path, 2, 1)
    assert failure.code == 1 and "Connection closed by peer" in failure.text


def test_keyboard_interrupt_without_signal_counts_as_program_error(ended, tmp_path):
    ended(0, "crash", 3.0, "RuntimeError: Connection closed by peer", "Traceback: echo\n")
    ended(1, "signal", 2.0, "KeyboardInterrupt: ", "Traceback: KeyboardInterrupt\n", code=130)
    failure = explain(tmp_path, 2)
    assert (failure.code, failure.rank, failure.cause) == (130, 1, "program")
    assert failure.text == "Traceback: KeyboardInterrupt"
    assert "rank 1 on node1 failed first" in failure.context[-1]


def test_an_abort_after_a_program_that_had_ended_well_says_so(ended, tmp_path):
    text = "terminate called without an active exception\nFatal Python error: Aborted\n"
    ended(0, "done", 1.0, code=0)
    write(tmp_path, {"workers/rank_00000.err": text})
    failure = explain(tmp_path, 1, code=1)
    assert failure.code == 134 and failure.text.endswith(
        "Aborted; its program had ended with exit code 0, and Python was ending"
    )


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
def test_a_path_that_leaves_the_copied_project_is_explained(ended, tmp_path, path, leaves):
    path = path.replace("RUN", str(tmp_path))
    message = f"FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    ended(0, "crash", 1.0, message, "Traceback: missing\n")
    assert len(explain(tmp_path, 1).context) == 1  # it was no copy
    write(tmp_path, {"snapshot.json": {"project": "/home/me/p", "commit": "", "files": []}})
    first, *more = explain(tmp_path, 1).context
    assert bool(more) == leaves == ("; give it in full, or --no-snapshot" in first)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", "is for CPUs; --python names an"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "was built without NCCL"),
    ],
)
def test_torch_without_cuda_or_nccl_is_named_with_its_node(ended, tmp_path, message, advice):
    ended(0, "crash", 1.0, message, f"Traceback\n{message}\n")
    first = explain(tmp_path, 1).context[0]
    assert first.startswith(f"the torch of this Python on node0 {advice}")


def printed(tmp_path, **outputs):
    """The output of rank 1, by its file's ending."""
    for ending, data in outputs.items():
        (tmp_path / "workers" / f"rank_00001.{ending}").write_bytes(data)


def last_lines(tmp_path, shown=b""):
    """What is printed of the run, without where it is."""
    run_dir, *lines = report(explain(tmp_path, 4, 1), tmp_path, shown).splitlines()
    assert run_dir == f"run folder: {tmp_path}"
    return lines


POINTER = "its output: muster jobs logs {} --rank 1"


def test_long_traceback_is_cut_to_ten_lines(ended, tmp_path):
    calls = [f'  File "train.py", line {number}, in f' for number in range(20)]
    traceback = "\n".join(["Traceback (most recent call last):", *calls, "ValueError: no"])
    ended(1, "crash", 1.0, "ValueError: no", traceback)
    _, first, left_out, *rest = last_lines(tmp_path)
    assert first.startswith("Traceback") and left_out == "  ... (13 lines)"
    assert rest == [*calls[13:], "ValueError: no"]


def test_last_output_of_a_rank_that_exits_is_shown(ended, tmp_path):
    ended(1, "exit", 1.0, "exit code 7", code=7)
    printed(tmp_path, err=b"cannot read data: /data/x missing\n\n", out=b"step 1\n")
    assert last_lines(tmp_path) == [
        "error: rank 1 on node1: exit code 7",
        "the end of its output:",
        "  step 1",
        "  cannot read data: /data/x missing",
        POINTER.format(tmp_path.name),
    ]
    assert explain(tmp_path, 4, 1).text == "error: rank 1 on node1: exit code 7"


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
def test_shown_output_is_short_and_moves_no_cursor(ended, tmp_path, stderr, lines):
    ended(1, "exit", 1.0, "exit code 7", code=7)
    printed(tmp_path, err=stderr, out=b"from stdout\n")
    _, *rest = last_lines(tmp_path)
    assert rest[1:-1] == [f"  {line}" for line in ["from stdout", *lines][-20:]]


def test_beside_warnings_the_reason_may_be_on_stdout(ended, tmp_path):
    ended(1, "exit", 1.0, "exit code 7", code=7)
    lines = [*map(str, range(9)), "cannot open /data"]
    printed(tmp_path, err=b"UserWarning: old\n", out="\n".join(lines).encode())
    shown = [line.strip() for line in last_lines(tmp_path)[2:-1]]
    assert shown == [*lines[-5:], "UserWarning: old"]


def test_end_of_output_in_a_record_is_short(ended, tmp_path):
    ended(1, "exit", 1.0, "exit code 7", code=7)
    printed(tmp_path, err=b"\n".join([b"x" * 390] * 30))
    failure = explain(tmp_path, 4, 1)
    assert 3_000 < len(failure.output) < 4_001


def test_a_reason_that_a_program_gives_to_exit_is_printed_once(ended, tmp_path):
    """As by `sys.exit("no data")`, which Python prints, too."""
    ended(1, "exit", 1.0, "no data")
    printed(tmp_path, err=b"a warning\nno data\n")
    first, *rest = last_lines(tmp_path)
    assert first == "error: rank 1 on node1: no data"
    assert rest[:-1] == ["the end of its output:", "  a warning"]
    printed(tmp_path, err=b"error: no data\n")
    assert last_lines(tmp_path)[1:] == [POINTER.format(tmp_path.name)]


def test_output_that_was_shown_is_not_printed_again(ended, tmp_path):
    ended(1, "exit", 1.0, "exit code 7", code=7)
    printed(tmp_path, err=b"\x1b[31mno data\n")
    shown = b"step 1\n\x1b[31mno data\nstep 2\n"
    assert last_lines(tmp_path, shown)[1:] == [POINTER.format(tmp_path.name)]
    assert "  \\x1b[31mno data" in last_lines(tmp_path, b"no data\n")


TRACEBACK = "Traceback (most recent call last):\n  File 'a.py'\nValueError: bad 42\n"


def test_a_traceback_that_was_shown_is_named_in_one_line(ended, tmp_path):
    """Also where torch has put the rank before each of its lines."""
    for rank in (1, 0):
        ended(rank, "crash", 2.0 - rank, "ValueError: bad 42", TRACEBACK)
    printed(tmp_path, err=TRACEBACK.encode())
    whole = ["rank 0 failed in the same way", *explain(tmp_path, 4, 1).context[1:]]
    assert last_lines(tmp_path) == [*whole, *TRACEBACK.splitlines(), POINTER.format(tmp_path.name)]
    prefixed = "".join(f"[rank0]: {line}\n" for line in TRACEBACK.splitlines())
    for shown in (TRACEBACK, prefixed):
        first, cause, pointer = last_lines(tmp_path, f"step 1\n{shown}".encode())
        assert first == "rank 0 failed in the same way" and pointer.endswith("--rank 1")
        assert re.fullmatch(r"error: rank 1 on node1 failed at [\d:]{8}: ValueError: bad 42", cause)


GLOO = "RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.2]:99. GLHF!"


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


WAITS = {
    ((0,), (1, 2)): "rank 0 waits in barrier, main, train.py:9, which ranks 1, 2 never reach: "
    "they have ended with exit code 0 on n",
    ((0, 1), (2,)): "ranks 0, 1 wait in barrier, main, train.py:9, which rank 2 never reaches: "
    "it has ended with exit code 0 on n",
}


@pytest.mark.parametrize(("losers", "early"), WAITS)
def test_rank_that_left_early_is_named_with_where_others_wait(ended, tmp_path, losers, early):
    """The logs of both say nothing more."""
    write(tmp_path, {"agents/node_00000.json": WITH_CHECKOUT})
    for rank in losers:
        ended(rank, "crash", 1.0, GLOO, LOST)
    for rank in early:
        ended(rank, "done", 0.5, code=0)
    assert report(explain(tmp_path, 3, 1), tmp_path).splitlines()[1:] == [
        f"error: {WAITS[losers, early]}"
    ]


WITH_CHECKOUT = {"index": 0, "node": "n", "address": "::1", "muster": "/opt/muster"}
WITH_CHECKOUT["ranks"] = [0, 1, 2]


def test_rank_that_left_init_is_named_with_where_others_wait(ended, tmp_path):
    """Whichever rank has noticed it first, and under its node's name."""
    write(tmp_path, {"agents/node_00000.json": WITH_CHECKOUT})
    chain = f"{LOST}\nThe above exception was the direct cause ...\n\nPeerFailed: ...\n"
    named = f"{PeerFailed.__name__}: rank 0 on vm has {HAS_LEFT}; ..."
    closed = "RuntimeError: connection closed by peer\n\nPeerFailed: ..."
    ended(1, "crash", 1.0, f"{PeerFailed.__name__}: lost rank 0 on vm, rank 2 on vm", chain)
    ended(2, "crash", 1.1, named, chain)
    ended(0, "crash", 1.2, named, f"Traceback (most recent call last):\n{closed}")
    assert explain(tmp_path, 3, 1).text == (
        "error: rank 0 on n has left muster.init(), and ranks 1, 2 wait in barrier, main, "
        "train.py:9; all ranks have to leave it at the same step"
    )


def test_rank_that_left_early_is_named_where_no_line_is_known(ended, tmp_path):
    ended(0, "crash", 1.0, GLOO, f"Traceback ...\n{GLOO}\n")
    ended(1, "done", 0.5, code=0)
    (cause,) = report(explain(tmp_path, 2, 1), tmp_path).splitlines()[1:]
    assert cause.startswith("error: rank 1 on node1 ended with exit code 0 while others")


def test_first_lost_peer_traceback_is_shown_without_other_cause(ended, tmp_path):
    """Its worker has hidden it as a consequence."""
    ended(0, "crash", 1.0, GLOO, f"Traceback ...\n{GLOO}\n")
    agent(tmp_path, 0, "command", "torchrun on node0 ended", ranks=[0, 1], terminated={1: victim()})
    lines = report(explain(tmp_path, 2, 1), tmp_path).splitlines()[1:]
    assert lines == ["error: rank 0 on node0 lost another worker:", "Traceback ...", GLOO]


@pytest.mark.parametrize("recorded", [True, False])
def test_last_output_of_a_killed_rank_is_shown(ended, tmp_path, recorded):
    """Whether its agent has seen it, or not."""
    for rank in (0, 2, 3):
        ended(rank, "lost_peer", 1.0, "lost another worker")
    if recorded:
        killed(tmp_path, 1)
    printed(tmp_path, err=b"allocating 900 GB\n")
    lines = last_lines(tmp_path)
    assert lines[-3:] == [
        "the end of its output:",
        "  allocating 900 GB",
        POINTER.format(tmp_path.name),
    ]
    assert lines[-4].startswith("error: rank 1")


def test_orderly_stop_prints_nothing_twice(tmp_path):
    stopped = Failure(75, "stopped cleanly after step 3")
    assert report(stopped, tmp_path, b"step 3\nstopped cleanly after step 3\n") == ""
    assert "stopped cleanly" in report(stopped, tmp_path, b"step 3\n")
