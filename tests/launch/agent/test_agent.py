"""An agent heeds messages from its start on, and does not let ended processes pile up."""

import json
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import msgspec
import pytest

from launch.agent.agent import Agent, Ending, NodeAttempt, Signals, master_port_of
from launch.agent.processes import process_tree
from launch.agent.processes.workers import Workload
from launch.agent.stopping import STOPPABLE
from launch.nodes.channel import MESSAGE_MARK, Channel
from launch.nodes.messages import (
    Assign,
    Ended,
    InspectedAll,
    OddMessage,
    Released,
    Stop,
    WorkerEnded,
    from_agent,
    from_leader,
)
from launch.spec import NodeCommand
from launch.starters.base import WarmInterpreter
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from muster.run_files import AGENT_END
from tests.commands import call, ended
from tests.launch.pretended import assignment
from tests.launch.submit import run_well, start, submit
from tests.written import write

LOCAL = ("--launcher", "local")
ORPHANS = """
import os, subprocess, time
import psutil
for _ in range(20):
    subprocess.run(["sh", "-c", "true &"], check=True)
agent = int(os.environ["MUSTER_AGENT_PID"])
def zombies():
    seen = [one.info for one in psutil.process_iter(["ppid", "status"])]
    return [one for one in seen if (one["ppid"], one["status"]) == (agent, psutil.STATUS_ZOMBIE)]
while zombies():
    time.sleep(0.1)
print("none left")
"""


def test_orphans_that_have_ended_do_not_pile_up(tmp_path):
    (tmp_path / "orphans.py").write_text(ORPHANS)
    out = run_well(*LOCAL, "--", "./orphans.py", cwd=tmp_path, python=sys.executable)
    assert out.splitlines()[-1] == "none left"


TWO = """
import json, os, sys, time
from pathlib import Path
rank, agents = os.environ["RANK"], Path(os.environ["MUSTER_RUN_DIR"], "agents")
if sys.argv[1] == "fails":
    time.sleep(10_000) if rank == "0" else sys.exit(7)
if rank == "0":
    sys.exit(0)
while not (agents / "node_00000.exit.json").exists():
    time.sleep(0.05)
first = json.loads((agents / "node_00000.json").read_text())["pid"]
Path("first_lives").write_text(str(Path("/proc", str(first)).exists()))
"""


def two_nodes(tmp_path, how):
    """Run two nodes; return the exit code, the printed errors, and the agents' end records."""
    (tmp_path / "two.py").write_text(TWO)
    flags = (*LOCAL, "--nodes", "2", "--workers", "manual", "--run-id", "two")
    code, _, err = submit(*flags, "--", "./two.py", how, cwd=tmp_path)
    paths = [tmp_path / "logs" / "two" / "agents" / f"node_0000{node}.exit.json" for node in (0, 1)]
    return code, err, [json.loads(path.read_text()) for path in paths]


def test_failure_of_one_agent_is_the_message_of_all(tmp_path):
    code, err, (other, first) = two_nodes(tmp_path, "fails")
    assert (code, first["cause"], other["cause"]) == (7, "command", "peer"), err
    assert other["message"] == first["message"] == "rank 1 on node1: exit code 7"


SIGNALLED = """
import os, signal, time
print("attempt", os.environ["MUSTER_ATTEMPT"])
if (os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]) == ("0", "1"):
    os.kill(int(os.environ["MUSTER_AGENT_PID"]), signal.SIGTERM)
    time.sleep(10_000)
"""


def test_agent_that_got_a_signal_is_replaced_for_next_attempt(tmp_path):
    """It ends after its part of this attempt; another agent is started on its node."""
    (tmp_path / "signalled.py").write_text(SIGNALLED)
    flags = (*LOCAL, "--nodes", "2", "--workers", "manual", "--run-id", "signalled")
    argv = (*flags, "--max-restarts", "1", "--stop-grace-s", "1", "--", "./signalled.py")
    code, out, err = submit(*argv, cwd=tmp_path, python=sys.executable)
    assert code == 0 and "attempt 1" in out, err
    assert "error: node1 was sent SIGTERM" in err


STOPS_ALONE = """
import os, sys, time
if os.environ["RANK"] == "0":
    sys.exit(0)
if os.environ["RANK"] == "1":
    sys.exit(75)
time.sleep(10_000)
"""


def test_node_that_stops_cleanly_alone_ends_the_others(tmp_path):
    """Some of its ranks are done and others have stopped, so no other node can go on with them."""
    (tmp_path / "stops_alone.py").write_text(STOPS_ALONE)
    flags = (*LOCAL, "--nodes", "2", "--nproc-per-node", "2", "--workers", "manual")
    code, _, err = submit(*flags, "--", "./stops_alone.py", cwd=tmp_path)
    assert code == 75 and "stopped cleanly" in err and "gone" not in err, err


def test_messages_of_an_attempt_are_sent_before_its_end(tmp_path, monkeypatch):
    """A later message would count for the next attempt, perhaps from a rank that is elsewhere."""
    monkeypatch.setattr(process_tree, "end_descendants", lambda *args, **more: [])
    own, others = socket.socketpair()
    leader = Channel(own.fileno(), own.detach(), from_leader)
    received = Channel(others.fileno(), others.detach(), from_agent)
    part = replace(assignment(tmp_path), counts=(1, 1))
    agent = NodeAttempt(part, leader, Signals(), tmp_path, WarmInterpreter())
    agent._workload = Workload(part, [])
    with ThreadPoolExecutor() as pool:
        end = pool.submit(agent._end, Ending(1, "command", "boom"), is_failure=True)
        assert received.first(Ended) is not None
        agent._inspect()._answers.put(InspectedAll("7"))
        received.send(Released())
        end.result()
    assert received.receive() == []
    for channel in (leader, received):
        channel.close()


def test_big_tracebacks_of_many_ranks_fit_through_the_channel(tmp_path, monkeypatch):
    """The ranks' records stay in their own files; the agent's file contains none of them."""
    monkeypatch.setattr(process_tree, "end_descendants", lambda *args, **more: [])
    ranks = tuple(range(24))
    record = {"host": "here", "pid": 7, "time_unix_s": 8.0, "code": 1, "cause": "crash"}
    record |= {"message": "ValueError: 7", "traceback": "x" * 600_000}
    write(tmp_path, {f"exits/rank_{rank:05d}.json": {**record, "rank": rank} for rank in ranks})
    own, others = socket.socketpair()
    leader = Channel(own.fileno(), own.detach(), from_leader)
    received = Channel(others.fileno(), others.detach(), from_agent)
    part = replace(assignment(tmp_path), ranks=ranks)
    agent = NodeAttempt(part, leader, Signals(), tmp_path, WarmInterpreter())
    with ThreadPoolExecutor() as pool:
        end = pool.submit(agent._end, Ending(1, "command", "boom"), is_failure=True)
        told = []
        while not told or told[-1] != Ended(1):
            message = received.first(WorkerEnded, Ended, OddMessage)
            assert isinstance(message, WorkerEnded | Ended), message
            told.append(message)
        end.result()
    assert [message.end.rank for message in told[:-1]] == list(ranks)
    assert AGENT_END.path(tmp_path, node=0).stat().st_size < 10_000
    for channel in (leader, received):
        channel.close()


def test_no_agent_leaves_before_all_have_done_their_part(tmp_path):
    """Its background processes may be of use to the others."""
    code, err, ends = two_nodes(tmp_path, "ends")
    assert code == 0, err
    assert (tmp_path / "first_lives").read_text() == "True"
    assert [one["cause"] for one in ends] == ["done", "done"]


def test_sockets_of_workers_have_short_paths_whatever_tmpdir_is(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 90)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    shows = "import os\nprint(os.environ['MUSTER_INSPECTION'], os.environ['TMPDIR'])\n"
    waits = "while not os.listdir(os.environ['MUSTER_INSPECTION']): pass\n"
    (tmp_path / "shows.py").write_text(shows + waits)
    inspection, own = run_well(*LOCAL, "--", "./shows.py", cwd=tmp_path).split()[-2:]
    assert len(inspection) < 80 and own == str(folder)


def test_a_port_for_torch_that_is_in_use_is_refused(tmp_path):
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(MusterError, match=f"--master-port {port} is in use on node0"):
            master_port_of(replace(assignment(tmp_path), master_port=port))


@pytest.mark.parametrize("is_assigned", [True, False])
def test_stop_that_comes_with_the_assignment_is_heeded(tmp_path, is_assigned):
    """If a user presses Ctrl-C as the agents start, all messages are waiting in the pipe."""
    sleeps = NodeCommand("node0", 0, ("sleep", "300", str(tmp_path)), {}, str(tmp_path))
    assigned = json.dumps(replace(assignment(tmp_path), commands=(sleeps,)).to_json()).encode()
    stop = Stop(128 + signal.SIGINT, "told to stop", "SIGINT")
    messages = [Assign(assigned), stop] if is_assigned else [stop]
    reads, writes = os.pipe()
    os.write(writes, b"".join(MESSAGE_MARK + msgspec.json.encode(one) + b"\n" for one in messages))
    command = [sys.executable, "-m", "launch.agent"]
    with os.fdopen(reads, "rb") as stdin:
        agent = subprocess.Popen(command, cwd=CHECKOUT, stdin=stdin, stdout=subprocess.PIPE)
    with ended(agent):
        assert agent.stdout is not None
        with os.fdopen(writes, "wb"):  # open until its part has ended
            for line in agent.stdout:
                if b'"kind":"ended"' in line:
                    break
        assert agent.wait(timeout=300) == 128 + signal.SIGINT


@pytest.mark.parametrize("is_first", [True, False])
def test_odd_assignment_is_the_failure_of_the_leader(is_first):
    """Otherwise the agent would wait forever for another assignment."""
    own, others = socket.socketpair()
    leader = Channel(own.fileno(), own.detach(), from_leader)
    with closing(leader), closing(others):
        others.sendall(MESSAGE_MARK + b'{"kind":"assign","assignment":7}\n')
        others.shutdown(socket.SHUT_WR)
        agent = Agent(leader, lambda message: pytest.fail("it is odd"), None)
        with pytest.raises(OddMessage, match="assignment"):
            agent.run() if is_first else agent._next_assignment()


def test_worker_that_can_stop_gets_the_leaders_reason(tmp_path):
    """It prints the reason in its last line: `stopped cleanly after step 7 (SIGINT)`."""
    own, others = socket.socketpair()
    leader = Channel(own.fileno(), own.detach(), from_leader)
    to_agent = Channel(others.fileno(), others.detach())
    agent = NodeAttempt(assignment(tmp_path), leader, Signals(), tmp_path, WarmInterpreter())
    with closing(leader), closing(to_agent), ended(subprocess.Popen(["sleep", "300"])) as worker:
        reason = write(tmp_path / STOPPABLE, {str(worker.pid): ""}) / str(worker.pid)
        to_agent.send(Stop(130, "told to stop (SIGINT)", "SIGINT"))
        agent._hear()
        assert agent._requested is not None
        agent._ask_workers_to_stop(agent._requested)
        assert reason.read_text() == "SIGINT"
        assert worker.wait(timeout=300) == -signal.SIGTERM


def test_an_agent_imports_no_library_that_it_does_not_use():
    """It is started on every node, and each import delays the run."""
    words = "import sys, launch.agent.agent, launch.agent.led_run; "
    words += "print({'yaml', 'rich', 'jsonargparse', 'torch'} & set(sys.modules))"
    assert call(sys.executable, "-c", words, cwd=CHECKOUT).stdout == "set()\n"


def test_inspection_imports_nothing_later():
    """An agent loads it ten seconds after its workers began, so a failure waits for no import."""
    words = "import sys; from launch.agent.inspection import node_inspection; "
    words += "print('concurrent.futures.thread' in sys.modules)"
    assert call(sys.executable, "-c", words, cwd=CHECKOUT).stdout == "True\n"


@pytest.mark.needs("prlimit")
def test_too_many_open_files_are_one_line_that_names_the_limit(tmp_path):
    (tmp_path / "t.py").write_text("print('here')\n")
    flags = (*LOCAL, "--nodes", "8", "--workers", "manual", "--run-id", "limited", "--", "t.py")
    process = start(*flags, cwd=tmp_path, before=["prlimit", "--nofile=20:20"])
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in err, err
    assert "too many open files" in err and err.endswith(" ulimit -n\n")
    end = json.loads((tmp_path / "logs" / "limited" / "exit.json").read_text())
    assert end["code"] == 1 and end["message"] in err


SMALL = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'


@pytest.mark.needs("root", "namespaces", "prlimit")
def test_workers_get_more_files_and_small_shared_memory_is_noted(tmp_path):
    (tmp_path / "t.py").write_text("import resource; print(resource.getrlimit(7))\n")
    flags = (*LOCAL, "--nodes", "2", "--workers", "manual", "--run-id", "small", "--", "t.py")
    before = ["prlimit", "--nofile=400:1000", "unshare", "--mount", "sh", "-c", SMALL, "sh"]
    process = start(*flags, cwd=tmp_path, before=before)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "(1000, 1000)" in out, out + err
    lines = [line for line in err.splitlines() if "/dev/shm has 1 of 1 MB free" in line]
    nodes = sorted(node for line in lines for node in line.split(": ")[1].split(", "))
    assert nodes == ["node0", "node1"] and all(line.startswith("note: ") for line in lines)
