"""Whatever a node says, the leader goes on: at worst the node has failed.

The same holds for an agent, of its leader and of its workers.
"""

import base64
import json
import os
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from configs.settings.launch import WorkersPerNode
from launch.agent.agent import NodeAttempt, Signals
from launch.agent.inspection import diagnosis, local_workers
from launch.agent.inspection.node_inspection import Activity
from launch.agent.inspection.run_inspection import views_of
from launch.agent.led_run import AgentConnection, Attempt
from launch.ends import End, Kind
from launch.nodes.channel import (
    FROM_LEADER,
    AgentProcess,
    Channel,
    OddMessage,
    check_message,
    cleaned,
    forms_of_agent,
)
from launch.runs.failure import explain
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec, Program, assignments_of
from launch.starters.base import WarmInterpreter
from tests.fuzzing import fuzzed
from tests.launch import odd_messages
from tests.launch.odd_messages import nearly

TWO = WorkersPerNode(2)
NODE = NodeFacts(NodeSpec("localhost", TWO), "node0", "python", "/", TWO)
FACTS = Facts((NODE, replace(NODE, name="node1")), "127.0.0.1")
PLACE = {"file": "/home/x/train.py", "line": 7, "function": "main"}
STACKS = {
    "gave_up": {"message": "Timed out", "frames": [PLACE]},
    "threads": [{"name": "main", "main": True, "frames": [{**PLACE, "text": "x", "for_s": 3.0}]}],
    "groups": {"0": {"ranks": [0, 1, 2, 3], "begun": 3}},
    "collectives": [
        {
            "group": "0",
            "description": "default_pg",
            "number": 4,
            "operation": "all_reduce",
            "shapes": [[1000]],
            "types": ["Float"],
            "waits": True,
            "begun_unix_s": 5.0,
            "age_s": 7.0,
            "limit_s": 60.0,
        }
    ],
    "meeting": {
        "rank": 2,
        "world_size": 4,
        "store": "10.0.0.2:29500",
        "serves": False,
        "by_launcher": True,
        "method": "env://",
    },
}
CHILDREN = [
    {"pid": 8, "words": "computes"},
    {"pid": 9, "words": "sleeps"},
]
REPORT = {
    "rank": 2,
    "pid": 7,
    "time_unix_s": 8.0,
    "answers": True,
    "clock_offset_s": 0.0,
    **STACKS,
    "process": {"status": "sleeping", "words": "sleeps", "children": CHILDREN},
}
HERE = {
    "index": 1,
    "node": "node1",
    "address": "10.0.0.2",
    "interface": "eth0",
    "ranks": [2, 3],
    "cores": "2 for each worker",
    "time_unix_s": 5.0,
    "host": "host1",
    "pid": 7,
    "started_unix_s": 4.0,
    "start_ticks": 9,
    "boot_id": "0b",
}
END = {
    "index": 1,
    "node": "node1",
    "host": "host1",
    "code": 1,
    "cause": "command",
    "message": "rank 2 on node1 was killed by SIGKILL",
    "noticed_unix_s": 8.0,
    "full": "",
    "time_unix_s": 9.0,
    "clock_offset_s": 0.0,
    "ranks": [2, 3],
    "oom_kills": 0,
    "workers": {},
    "ended": {"3": {"pid": 8, "rank": 3, "state": "", "signal": "SIGTERM", "survives": False}},
}
RANK_END = {
    "rank": 2,
    "host": "host1",
    "pid": 7,
    "time_unix_s": 8.0,
    "code": 1,
    "cause": "crash",
    "message": "ValueError: 7",
    "traceback": "Traceback ...",
    "peak_memory_bytes": 7,
}


def file(name: str, content: object, **more) -> dict:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return {"file": name, "at": 0, "data": base64.b64encode(data).decode(), "last": True, **more}


KILLED = End(Kind.KILLED, "node1", 8.0, 2, signal=9)
REFUSED = End(Kind.REFUSED, "node1", 8.0, message="no such program")
FROM_AGENT = [
    {"beat": 5.0},
    {"connected": {"own": ["10.10.1.2", 40_000], "peer": ["10.10.1.1", 20_000]}},
    {"unreached": "connection refused"},
    {"broken": {"own": ["fe80::2%exp0", 4], "peer": ["fe80::1%exp0", 2], "how": "silent"}},
    {"here": HERE},
    {"notes": ["/dev/shm has 60 of 64 MB free: ..."]},
    file("workers/rank_00002.out", b"x" * 100),
    file("exits/rank_00002.json", RANK_END),
    file("agents/node_00001.exit.json", END),
    file("agents/node_00001.json", HERE),
    {"inspected": {"id": "still", "still": {"s": 70.0, "pause_s": 1.0}}},
    {"inspected": {"id": "timeout", "look": True}},
    {"inspected": {"id": "timeout", "report": REPORT}},
    {"inspected": {"id": "timeout", "complete": True}},
    {"inspected": {"id": "end", "report": REPORT}},
    {"stopping": 60.0, "all": True},
    {"done": True},
    {"worker_end": KILLED.to_json()},
    {"failed": REFUSED.to_json()},
    {"ended": END},
    {"ended": END, "leaves": True},
]


@contextmanager
def leader():
    """An attempt of two nodes that say nothing by themselves, and the other ends."""
    pairs = [socket.socketpair() for _ in FACTS.nodes]
    channels = [Channel(ours.fileno(), ours.detach()) for ours, _ in pairs]
    with TemporaryDirectory() as folder:
        spec = LaunchSpec("run", Path(folder), Program(()), quiet=True)
        process = SimpleNamespace(poll=lambda: 0)
        agents = [AgentConnection(AgentProcess(channel, process)) for channel in channels]
        attempt = Attempt(spec, agents, [], lambda: False, prefixes=False)
        attempt.start(assignments_of(spec, FACTS, []))
        try:
            yield attempt, [theirs for _, theirs in pairs]
        finally:
            for channel in channels:
                channel.close()
            for _, theirs in pairs:
                theirs.close()


def hear(job, other, sent: bytes) -> None:
    """The leader reads all of what its second agent has sent, and looks at it."""
    while sent:
        try:
            sent = sent[other.send(sent, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        except OSError:  # it has left this agent
            return
        job._hear(job._agents[1])
    if job._inspection is not None:
        job._inspection.tick()


def held_bytes(run_dir: Path) -> int:
    return sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("message", FROM_AGENT, ids=lambda one: next(iter(one)))
def test_every_message_of_an_agent_is_understood(message):
    with leader() as (job, others):
        before = held_bytes(job._run_dir)
        hear(job, others[1], odd_messages.line(message))
        assert job._first is None or {"failed", "worker_end", "ended"} & message.keys()
        assert not job._agents[1].channel.ended
        assert held_bytes(job._run_dir) > before or "file" not in message


@pytest.mark.parametrize("port", ["x", -1, True, None, "\ud800", 2**40])
def test_an_odd_port_of_node_0_is_that_node_s_failure(port):
    first = assignments_of(LaunchSpec("run", Path("/nowhere"), Program(())), FACTS, [])[0]
    for message in (
        {"master_port": port},
        {"listening": {"address": "10.10.1.1", "port": port}},
        {"accepted": {"own": ["10.10.1.1", port], "peer": ["10.10.1.2", 7]}},
    ):
        with pytest.raises(OddMessage):
            check_message(message, forms_of_agent(first))


def test_failure_lengthened_by_escapes_stays_a_valid_message(monkeypatch):
    sent = []
    monkeypatch.setattr(Attempt, "_send_all", lambda job, **message: sent.append(message))
    with leader() as (job, others):
        failed = replace(REFUSED, message="\x1b" * 19_000).to_json()
        hear(job, others[1], odd_messages.line({"failed": failed}))
    check_message(sent[-1], FROM_LEADER)


def test_full_disk_is_named_where_ranks_only_lost_peers(monkeypatch):
    """What is missing may not have fitted on it."""
    monkeypatch.setattr("launch.agent.led_run.full_disk", lambda path: f"{path}: the disk is full")
    lost = End(Kind.LOST_PEER, "node1", 8.0, 2, message="lost another worker")
    with leader() as (job, others):
        hear(job, others[1], odd_messages.line({"worker_end": lost.to_json()}))
        assert job._judge().text.endswith("exit.json: the disk is full")
        hear(job, others[1], odd_messages.line({"worker_end": KILLED.to_json()}))
        assert job._judge() == KILLED


ODD = {
    "of no kind": {"other": 1},
    "two kinds": {"done": True, "ended": END},
    "no record of the end": {"ended": []},
    "no code": {"ended": {"code": "0"}},
    "leaves with a number": {"ended": END, "leaves": 1},
    "a time without end": {"stopping": 1e300},
    "another node": {"here": {**HERE, "node": "node0"}},
    "ranks of another node": {"here": {**HERE, "ranks": [0, 1]}},
    "no address": {"here": {"node": "node1", "ranks": [2, 3]}},
    "a port of the second agent": {"listening": {"address": "10.10.1.2", "port": 40_000}},
    "a port of torch of the second agent": {"master_port": 40_000},
    "a connection without port": {"connected": {"own": ["10.10.1.2"], "peer": ["10.10.1.1", 7]}},
    "a connection to a name": {"connected": {"own": ["node1", 7], "peer": ["10.10.1.1", 7]}},
    "an odd end of a connection": {
        "broken": {"own": ["10.10.1.2", 7], "peer": ["10.10.1.1", 7], "how": "oddly"}
    },
    "another agent that is to have failed": {"failed": REFUSED.to_json(), "lost": 0},
    "an end of another rank": {"worker_end": replace(KILLED, rank=0).to_json()},
    "an end of no rank": {"worker_end": REFUSED.to_json()},
    "a rank's end for a node's": {"failed": KILLED.to_json()},
    "a sentence for an end": {"failed": "rank 2 on node1 failed"},
    "an end that is too long": {"failed": {**REFUSED.to_json(), "message": "x" * 30_000}},
    "a rank of another node": {"inspected": {"id": "end", "report": {**REPORT, "rank": 0}}},
    "a hole": file("workers/rank_00002.out", b"x", at=2**40),
    "before the begin": file("workers/rank_00002.out", b"x", at=-1),
    "no base64": {**file("workers/rank_00002.out", b""), "data": "*"},
    "half a character": file("model/\ud800", b"x"),
    "a file of another rank": file("workers/rank_00000.out", b"x"),
    "nested too deeply": {"failed": odd_messages.DEEP},
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_an_odd_message_is_that_agent_s_failure(message):
    with leader() as (job, others):
        hear(job, others[1], odd_messages.line(message))
        if job._first is None:  # brackets that JSON itself does not take are noise
            assert message == ODD["nested too deeply"] and job._agents[1].channel.noise
            return
        cause = job._judge()
        assert cause.text.startswith("node1 sent an odd message: ") and cause.node == "node1"
        assert cause.text.isprintable() and len(cause.text) < 500
        assert job._agents[1].channel.ended and not job._agents[0].channel.ended
        failure = explain(job._run_dir, 4, 1, cause)
        assert (failure.code, failure.text) == (1, f"error: {cause.text}")
        assert failure.cause == "node_lost"
        assert held_bytes(job._run_dir) < 1000


@fuzzed(nearly([[one, two] for one in FROM_AGENT for two in FROM_AGENT[-8:]]))
def test_message_of_an_agent_does_no_more_than_fail_it(messages):
    with leader() as (job, others):
        sent = b"".join(map(odd_messages.line, messages))
        hear(job, others[1], sent)
        assert job._first is None or job._first.node == "node1"
        assert held_bytes(job._run_dir) < len(sent) + 10_000
        job._inspect().finish()
        failure = explain(job._run_dir, 4, 1, job._judge())
        assert failure.code and failure.text.encode(errors="backslashreplace")


TO_AGENT = [
    {"beat": 5.0},
    {"connect": {"address": "10.10.1.1", "port": 20_000}},
    {"keep": {"own": ["10.10.1.1", 20_000], "peer": ["10.10.1.2", 40_000]}},
    {"choose_port": True},
    {"start": 20_001},
    {"notice": True},
    {"stop": 130, "why": "told to stop (SIGINT)", "signal": "SIGINT", "hurry": False},
    {"lost": "node2 is gone"},
    {"inspect": {"id": "timeout", "ask": "stacks"}},
    {"inspect": {"id": "timeout", "ask": "resume"}},
    {"go": True},
]


@fuzzed(nearly([[one, two] for one in TO_AGENT for two in TO_AGENT]))
def test_message_of_a_leader_does_no_more_than_end_an_agent(messages):
    ours, theirs = socket.socketpair()
    with TemporaryDirectory() as folder, theirs:
        spec = LaunchSpec("run", Path(folder), Program(()))
        assignment = replace(assignments_of(spec, FACTS, [])[0], ranks=())
        channel = Channel(ours.fileno(), ours.detach())
        agent = NodeAttempt(assignment, channel, Signals(), Path(folder), WarmInterpreter())
        for message in messages if isinstance(messages, list) else [messages]:
            theirs.sendall(odd_messages.line(message))
            agent._hear()
            if isinstance(message, dict) and "assignment" in message:
                break  # from here on messages are for the next attempt
            if isinstance(message, dict) and not fits_any(message):
                assert agent._failure_elsewhere
        failure = agent._failure_elsewhere
        assert failure is None or isinstance(failure, str)
        assert agent._outcome is None or 0 <= agent._outcome.code < 256
        channel.close()


def fits_any(message) -> bool:
    try:
        check_message(json.loads(odd_messages.line(message, b"")), FROM_LEADER)
    except OddMessage:
        return False
    except (RecursionError, ValueError):  # the channel does not take it
        return True
    return True


WORKER = {"rank": 0, "pid": 7, "time_unix_s": 8.0, **STACKS}
PROGRESS = {"rank": 0, "pid": 7, "time_unix_s": 8.0, "gave_up": None, "begun": 3, "places": [7]}


@contextmanager
def worker(folder: Path, answer):
    """Someone at the socket of rank 0, who sends what `answer` makes, to whoever asks."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "rank_00000.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    for part in answer:
                        connection.sendall(part)
                except OSError:  # nobody reads on
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


@fuzzed(nearly([WORKER, PROGRESS]))
def test_answer_of_a_worker_does_no_more_than_count_as_none(reply):
    with TemporaryDirectory() as name, worker(Path(name), [odd_messages.line(reply, b"")]):
        (report,) = local_workers.ask(Path(name), [0], 60.0, ask="stacks").values()
    Activity().look({0: os.getpid()}, {0: report})
    reports = [report, {**report, "rank": 1}]
    node_of = {"0": "node0", "1": "node1"}
    views = views_of({"reports": reports, "node_of": node_of, "ends": {}})
    assert all(diagnosis.sentences(views)) and all(map(diagnosis.condition, views.values()))
    if report["answers"]:
        sent = {**report, "clock_offset_s": 0.0}
        for name in ("begun", "places"):
            sent.pop(name, None)
        first = assignments_of(LaunchSpec("run", Path("/nowhere"), Program(())), FACTS, [])[0]
        check_message({"inspected": {"id": "7", "report": sent}}, forms_of_agent(first))


def endless():
    while True:
        yield b" " * 65_536


def slow():
    for _ in range(1000):
        yield b" "
        time.sleep(0.01)


@pytest.mark.parametrize("answer", [endless, slow])
def test_worker_with_endless_or_slow_answer_counts_as_silent(answer, tmp_path):
    with worker(tmp_path, answer()):
        (report,) = local_workers.ask(tmp_path, [0], 0.5, ask="progress").values()
    assert not report["answers"]


def test_a_text_of_a_node_moves_no_cursor():
    message = {"failed": "one\n\x1b[2Jtwo", "more": [{"x": "\r"}]}
    shown = {"failed": "one\n\\x1b[2Jtwo", "more": [{"x": "\\r"}]}
    assert cleaned(message) == shown
