"""An agent asks real processes: one that answers, one that cannot, one that is stopped."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

import msgspec
import pytest

from launch.agent.inspection import local_workers
from launch.agent.inspection.diagnosis import condition
from launch.agent.inspection.node_inspection import Activity, NodeInspection
from launch.agent.inspection.rank_view import view_of
from launch.agent.processes import process_state
from launch.agent.processes.process_state import ProcessState, state_of, tree_of
from launch.nodes.channel import Channel, running_s
from launch.nodes.messages import InitCall, Report
from muster.checkout import CHECKOUT
from tests.commands import begin
from tests.launch.pretended import assignment
from tests.launch.submit import wait_until
from tests.written import write

PROGRAM = r"""
import multiprocessing, os, signal, subprocess, sys, time
from pathlib import Path
def load_data():
    time.sleep(10_000)
def spin():
    while True:
        pass

def compute():
    pass

def evaluates():  # its main thread is in several places, as that of any code but a small loop
    while True:
        compute(), compute(), compute(), compute(), compute(), compute(), compute(), compute()

def writes():
    while True:
        print("x", flush=True)
        time.sleep(0.1)

def helps(parent):
    while os.getppid() == parent: pass

def prepares():
    fork = multiprocessing.get_context("fork")
    pool = [fork.Process(target=helps, args=(os.getpid(),)) for _ in range(2)]
    for one in pool:
        one.start()
    pool[0].join()

def prepares_alone():
    code = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    subprocess.Popen([sys.executable, "-c", code]).wait()

def loads():
    forked = multiprocessing.get_context("fork").Process(target=load_data)
    forked.start()
    anew = subprocess.Popen(["sleep", "10000"])
    print(forked.pid, anew.pid, flush=True)
    forked.join()

def loses_peer():
    import torch
    import torch.distributed as dist
    store = f"file://{sys.argv[0]}.store"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    dist.broadcast(torch.ones(7), 0)
    raise RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:48784")

class TakenApart:
    def __del__(self, sleep=time.sleep, write=os.write):
        write(1, b"ends\n")  # the interpreter's other threads run no more
        sleep(10_000)

def loses_peer_and_ends_slowly():
    global last
    last = TakenApart()
    loses_peer()

print("begun", flush=True)
globals()[sys.argv[1]]()
"""


@pytest.fixture
def start_worker(tmp_path, monkeypatch):
    """Start a worker of rank 0 that runs the named function of `PROGRAM`."""
    monkeypatch.setattr(local_workers, "WORKER_DUMPS_STACK_S", 60.0)
    (tmp_path / "inspection").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    env = {"MUSTER_INSPECTION": str(tmp_path / "inspection"), "RANK": "0"}
    main = CHECKOUT / "muster" / "worker" / "worker_main.py"
    with ExitStack() as stack:

        def start_worker(how):
            process = begin(sys.executable, main, tmp_path / "program.py", how, env=env)
            stack.enter_context(process)
            stack.callback(end_tree, process.pid)
            assert process.stdout.readline() == "begun\n"
            return process

        yield start_worker


@pytest.fixture
def start_command(start_worker, tmp_path):
    """Start a worker whose program is a shell command that runs the named function."""
    env = {"MUSTER_INSPECTION": str(tmp_path / "inspection"), "RANK": "0"}
    main = CHECKOUT / "muster" / "worker" / "worker_main.py"
    with ExitStack() as stack:

        def start_worker(how):
            line = f"{sys.executable} {tmp_path}/program.py {how}; true"
            process = begin(sys.executable, main, "--exec", "sh", "-c", line, env=env)
            stack.enter_context(process)
            stack.callback(end_tree, process.pid)
            assert process.stdout.readline() == "begun\n"
            return process

        yield start_worker


def end_tree(pid: int) -> None:
    for one in tree_of(pid):
        with suppress(ProcessLookupError):
            os.kill(one, signal.SIGKILL)


def ask(tmp_path, patience_s=60.0, **request):
    request = request or {"ask": "stacks"}
    return local_workers.ask(tmp_path / "inspection", [0], patience_s, **request)[0]


def functions(report):
    return [frame.function for frame in report.threads[0].frames]


def seconds_in(report, function):
    """How long the main thread has been in this function; 0 if it is elsewhere."""
    innermost = report.threads[0].frames[-1]
    return innermost.for_s or 0 if innermost.function == function else 0


def test_stopped_worker_is_seen_to_be_stopped(start_worker, tmp_path):
    os.kill(start_worker("load_data").pid, signal.SIGSTOP)
    words = "is stopped by a signal (SIGSTOP)"
    wait_until(lambda: ask(tmp_path, patience_s=0.1).process.words == words)


def test_no_process_that_is_not_below_this_one_is_signalled(start_worker, tmp_path):
    stranger = subprocess.Popen(["setsid", "--fork", "sleep", "3"])
    stranger.wait()
    record = tmp_path / "inspection" / "rank_00000.json"
    for text in (json.dumps({"rank": 0, "pid": os.getppid()}), "null", ""):  # or it has no pid
        record.write_text(text)
        report = ask(tmp_path)
        assert not report.answers and report.process.words == "has ended"


def test_worker_that_ended_because_of_another_rank_leaves_its_collectives(start_worker, tmp_path):
    process = start_worker("loses_peer")
    process.communicate(timeout=600)
    report = ask(tmp_path)
    assert not report.answers and report.process.words == "has ended"
    (collective,) = report.collectives
    assert (collective.operation, collective.shapes) == ("broadcast", ((7,),))
    assert functions(report) == ["<module>", "loses_peer"]


def test_worker_whose_interpreter_still_ends_has_left_its_collectives(start_worker, tmp_path):
    process = start_worker("loses_peer_and_ends_slowly")
    assert process.stdout.readline() == "ends\n"
    report = ask(tmp_path, patience_s=0.1)  # nobody will ever answer
    assert not report.answers and report.pid == process.pid
    assert [one.operation for one in report.collectives] == ["broadcast"]
    assert functions(report) == ["<module>", "loses_peer_and_ends_slowly", "loses_peer"]


def stands_still(process, tmp_path, *, moves: bool) -> bool:
    """Whether the process is seen to do nothing; if it moves, wait until that is seen."""
    activity, began = Activity(), time.monotonic()

    def look() -> float:
        progress = {0: ask(tmp_path, ask="progress", closely=True)}
        activity.look({0: process.pid}, progress)
        time.sleep(0.4)
        return activity.still_s

    if moves:
        wait_until(lambda: look() < time.monotonic() - began - 2)
        return False
    wait_until(lambda: look() > 1.5)
    return True


@pytest.mark.parametrize("init_call", [None, InitCall(0, 2, "10.0.0.9:4000", False, False, "")])
def test_retries_in_init_process_group_are_no_progress(init_call, tmp_path):
    """Each retry may write a warning."""
    activity = Activity()
    report = Report(rank=0, answers=True, begun=-1, init_call=init_call)
    activity.look({0: os.getpid()}, {0: report})
    began = activity._samples[0].active_at
    with (tmp_path / "log").open("wb", buffering=0) as file:
        file.write(b"connection refused")
    activity.look({0: os.getpid()}, {0: report})
    assert (activity._samples[0].active_at > began) == (init_call is None)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["load_data", "spin"])
def test_process_without_progress_stands_still(start_worker, tmp_path, how):
    assert stands_still(start_worker(how), tmp_path, moves=False)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writes", "prepares", "prepares_alone", "evaluates"])
def test_process_that_writes_or_computes_also_in_children_makes_progress(
    start_worker, tmp_path, how
):
    assert not stands_still(start_worker(how), tmp_path, moves=True)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "moves"), [("spin", False), ("prepares", True)])
def test_a_command_is_not_taken_for_what_its_program_has_started(
    start_command, tmp_path, how, moves
):
    assert stands_still(start_command(how), tmp_path, moves=moves) != moves


@pytest.mark.slow
def test_others_that_compute_are_named(start_worker, tmp_path):
    process = start_worker("prepares")
    wait_until(lambda: len(tree_of(process.pid)) == 3)
    first, second = tree_of(process.pid)[1:]
    words = f" sleeping [^;]*; .* child processes {first}, {second} is computing$"
    wait_until(lambda: re.search(words, condition_of(tmp_path)))


def condition_of(tmp_path):
    return condition(view_of(ask(tmp_path), "node0"))


@pytest.mark.slow
def test_child_that_was_stopped_is_named_and_sleeping_ones_not(start_worker, tmp_path):
    process = start_worker("loads")
    forked, stopped = map(int, process.stdout.readline().split())
    wait_until(lambda: re.search(" sleeping [^;]*$", condition_of(tmp_path)))
    children = ask(tmp_path).process.children
    assert {child.pid: child.words for child in children} == {
        forked: "sleeps",
        stopped: "sleeps",
    }
    os.kill(stopped, signal.SIGSTOP)
    words = f" sleeping [^;]*; .* child process {stopped} is stopped .*SIGSTOP"
    wait_until(lambda: re.search(words, condition_of(tmp_path)))


def test_the_file_for_which_a_held_process_waits_is_named(tmp_path, monkeypatch):
    """Its file server may be gone: /proc shows the number of the call, and the open file."""
    monkeypatch.setattr(process_state, "PROC", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    write(tmp_path, {"7/syscall": "0 0x3 0x7ffc1 0x1000 0x0 0x0 0x0 0x7ffc2 0x7f1"})
    (tmp_path / "7" / "fd").mkdir()
    (tmp_path / "7" / "fd" / "3").symlink_to("/nfs/images/0.tar")
    held = ProcessState(7, "disk-sleep", 0.0, 0, 0)
    assert held.words == "is in uninterruptible sleep, in read of /nfs/images/0.tar"
    (tmp_path / "7" / "fd" / "3").unlink()
    (tmp_path / "7" / "fd" / "3").symlink_to("/folder" * 500)  # the leader refuses longer texts
    assert len(held.words) < 1_100 and held.words.endswith("/folder/folder")
    for other in ("running", "-1 0x7ffc1 0x7f1", "262 0x3 0x7ffc1", ""):
        write(tmp_path, {"7/syscall": other})
        assert held.words.endswith("sleep: a disk, a file server or a device")


@pytest.mark.slow
def test_samples_during_and_after_stacks_request_show_no_progress(
    start_worker, tmp_path, monkeypatch
):
    monkeypatch.setattr("launch.agent.inspection.node_inspection.WORKER_EXAMINES_ITSELF_S", 60.0)
    channel = Channel(*os.pipe())
    node = NodeInspection(tmp_path / "inspection", assignment(tmp_path), channel, 0.0)
    start_worker("load_data")
    node._sample()
    began_s = running_s()
    ask_workers = local_workers.ask
    node._ask("hang", 60.0)
    node._sample()

    def ask_slowly(*words, **request):
        found = ask_workers(*words, **request)
        if request["ask"] == "stacks":
            assert found[0].answers
            node._sample()
        return found

    monkeypatch.setattr(local_workers, "ask", ask_slowly)
    node._ask("hang", 60.0)
    node._sample()
    elapsed_s = running_s() - began_s
    assert node._activity.still_s >= elapsed_s


@pytest.mark.slow
def test_without_proc_a_worker_is_asked_and_seen_all_the_same(start_worker, tmp_path, monkeypatch):
    """As on macOS, where there is no /proc."""
    process = start_worker("load_data")
    monkeypatch.setattr(process_state, "PROC", tmp_path / "none")
    wait_until(lambda: functions(ask(tmp_path))[-1] == "load_data")
    report = ask(tmp_path)
    assert report.answers and report.process.words == "sleeps"
    assert tree_of(os.getpid()) == [os.getpid()]
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process.pid).is_held)
    process.kill()
    process.wait()
    assert state_of(process.pid) is None


# faulthandler's output, from any version of Python
DUMP = """\
Thread 0x00007f41171c56c0 [loader] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f4117e07b80 (most recent call first):
  File "/home/me/train.py", line 6 in step
  File "/home/me/train.py", line ??? in <module>

Extension modules: numpy (total: 1)
"""


def test_the_thread_that_took_the_signal_comes_first_and_innermost_last():
    main, other = local_workers.threads_of(DUMP)
    assert main.main and [one.function for one in main.frames] == ["<module>", "step"]
    assert main.frames[1].line == 6 and main.frames[0].line == 0
    assert not other.main and other.name == "loader"


def test_end_of_long_stacks_and_names_is_kept():
    """The leader refuses longer ones."""
    lines = [f'  File "/{"x" * 5_000}/{line}.py", line {line} in deep' for line in range(100)]
    (thread,) = local_workers.threads_of("\n".join(["Current thread 0x1 (most recent", *lines]))
    assert len(thread.frames) == 60 and thread.frames[-1].line == 0
    assert all(len(frame.file) == 1_000 for frame in thread.frames)
    assert thread.frames[0].file.endswith("x/59.py")


def test_dump_with_excessive_values_can_still_be_sent():
    threads = "Current thread 0x1 [" + "x" * 5_000, "Thread 0x2 [" + "y" * 5_000
    lines = [f"{thread}] (most recent" for thread in threads]
    frames = [f'  File "/a.py", line {number} in f' for number in (2**63, "9" * 5_000, 7)]
    report = Report(rank=0, threads=local_workers.threads_of("\n".join([*lines, *frames])))
    main, other = msgspec.json.decode(msgspec.json.encode(report), type=Report).threads
    assert main.name == "main" and other.name == "y" * 1_000
    assert [frame.line for frame in other.frames] == [7]


def test_oldest_thread_is_taken_as_main_where_none_is_marked():
    text = DUMP.replace("Current thread", "Thread")
    assert local_workers.threads_of(text)[0].frames[0].file == "/home/me/train.py"
    assert local_workers.threads_of("nothing") == ()
