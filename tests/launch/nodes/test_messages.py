"""Whatever a node sends, the leader goes on; at worst, that node has failed.

The same holds for an agent and the messages of its leader and its workers.
"""

import json
import os
import socket
import threading
import time
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import get_args

import msgspec
import pytest
from msgspec.structs import replace as with_fields

from configs.settings.launch import WorkersPerNode
from launch.agent.agent import NodeAttempt, Signals
from launch.agent.inspection import diagnosis, local_workers
from launch.agent.inspection.node_inspection import Activity
from launch.agent.inspection.run_inspection import views_of
from launch.agent.led_run import AgentConnection, Attempt
from launch.agent.log_sync import LogSync
from launch.ends import MOST_RANKS, End, Kind
from launch.nodes import messages
from launch.nodes.channel import AgentProcess, Channel
from launch.nodes.messages import (
    REFUSED,
    Accepted,
    Assign,
    Beat,
    Broken,
    ChildReport,
    ChoosePort,
    ChosenPort,
    Collective,
    Connect,
    Connected,
    ConnectionEnds,
    Done,
    Ended,
    Endpoint,
    Failed,
    File,
    Frame,
    FromAgent,
    FromLeader,
    GaveUp,
    Group,
    InitCall,
    Inspect,
    Inspected,
    InspectedAll,
    Introduction,
    KeepConnection,
    Listening,
    Lost,
    NodeReady,
    Nonce,
    NoProgress,
    Note,
    Notice,
    ProcessReport,
    Released,
    Report,
    Start,
    Stop,
    Stopping,
    Thread,
    Unreached,
    WaitedInVain,
    Welcome,
    WorkerAnswer,
    WorkerEnded,
    from_agent,
    from_leader,
    from_stranger,
)
from launch.runs.failure import explain
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec, Program, assignments_of
from launch.starters.base import WarmInterpreter
from tests.fuzzing import fuzzed
from tests.launch import odd_messages
from tests.launch.odd_messages import nearly
from tests.written import write

TWO = WorkersPerNode(2)
NODE = NodeFacts(NodeSpec("localhost", TWO), "node0", "python", "/", TWO)
FACTS = Facts((NODE, replace(NODE, name="node1")), "127.0.0.1")
PLACE = Frame("/home/x/train.py", 7, "main")
STACKS = {
    "gave_up": GaveUp("Timed out", (PLACE,)),
    "threads": (Thread("main", True, (Frame("/home/x/train.py", 7, "main", "x", 3.0),)),),
    "groups": {"0": Group((0, 1, 2, 3), 3)},
    "collectives": (
        Collective(
            group="0",
            description="default_pg",
            number=4,
            operation="all_reduce",
            shapes=((1000,),),
            types=("Float",),
            waits=True,
            begun_unix_s=5.0,
            age_s=7.0,
            limit_s=60.0,
        ),
    ),
    "init_call": InitCall(2, 4, "10.0.0.2:29500", False, True, "env://"),
}
CHILDREN = (ChildReport(8, "computes"), ChildReport(9, "sleeps"))
REPORT = Report(
    rank=2,
    pid=7,
    time_unix_s=8.0,
    answers=True,
    muster="/home/x/muster",
    process=ProcessReport("sleeping", "sleeps", CHILDREN),
    **STACKS,
)
HERE = NodeReady("host1", "10.0.0.2", "eth0", "2 for each worker")
AGENT_FILE = {
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
END_FILE = {
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
    "terminated": {"3": {"pid": 8, "rank": 3, "state": "", "signal": "SIGTERM", "survives": False}},
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


def file(name: str, content: object, at: int = 0) -> File:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return File(os.fsencode(name), at, data, True)


def plain(message: messages.Value) -> dict:
    """The message in the form that it has in JSON."""
    return msgspec.to_builtins(message)


KILLED = End(Kind.KILLED, "node1", 8.0, 2, signal=9)
REFUSED_END = End(Kind.REFUSED, "node1", 8.0, message="no such program")
NODE_0_END = ConnectionEnds(Endpoint("10.10.1.1", 20_000), Endpoint("10.10.1.2", 40_000))
NODE_1_END = ConnectionEnds(NODE_0_END.peer, NODE_0_END.own)
OF_NODE_0 = [Listening(Endpoint("10.10.1.1", 20_000)), Accepted(NODE_0_END), ChosenPort(20_001)]
FROM_NODE_1 = [
    Beat(5.0, 40.0, "/disk/x"),
    Connected(NODE_1_END),
    Unreached("connection refused"),
    Broken(ConnectionEnds(Endpoint("fe80::2%exp0", 4), Endpoint("fe80::1%exp0", 2)), "silent"),
    HERE,
    Note("/dev/shm has 60 of 64 MB free: ..."),
    file("workers/rank_00002.out", b"x" * 100),
    file("exits/rank_00002.json", RANK_END),
    file("agents/node_00001.exit.json", END_FILE),
    file("agents/node_00001.json", AGENT_FILE),
    NoProgress(70.0, 1.0),
    WaitedInVain(),
    Inspected("timeout", REPORT),
    InspectedAll("timeout"),
    Inspected("end", REPORT),
    Stopping(60.0, True),
    Done(),
    WorkerEnded(KILLED),
    Failed(REFUSED_END),
    Ended(1),
    Ended(1, leaves=True),
]
TO_AGENT = [
    Welcome(),
    Beat(5.0),
    Connect("10.10.1.1", 20_000),
    KeepConnection(NODE_0_END),
    ChoosePort(),
    Start(20_001),
    Notice(),
    Stop(130, "told to stop (SIGINT)", "SIGINT"),
    Lost("node2 is gone"),
    Inspect("timeout", "stacks"),
    Inspect("timeout", "resume"),
    Released(),
]
BEFORE = [Nonce("n", "proof"), Introduction(b"{}", "proof")]


@pytest.mark.parametrize(
    ("decode", "sent"),
    [
        (from_agent, [*FROM_NODE_1, *OF_NODE_0]),
        (from_leader, [*TO_AGENT, Assign(b'{"cwd": "caf\\udce9"}', "proof")]),
        (from_stranger, BEFORE),
    ],
)
def test_each_message_is_the_same_after_its_way_through_json(decode, sent):
    for message in sent:
        assert decode(msgspec.json.encode(message)) == message


def test_each_kind_of_message_has_an_example_and_a_description():
    examples = {type(one) for one in (*FROM_NODE_1, *OF_NODE_0, *TO_AGENT, *BEFORE)}
    kinds = {*get_args(FromAgent), *get_args(FromLeader), Nonce, Introduction}
    assert kinds - examples == {Assign}
    types = [one for one in vars(messages).values() if isinstance(one, type)]
    values = [one for one in types if issubclass(one, messages.Value)]
    assert kinds <= {*values} and all(one.__dict__.get("__doc__") for one in values)
    assert all(one.__struct_config__.forbid_unknown_fields for one in values)


@contextmanager
def attempt_of_two_nodes():
    """An attempt of two nodes that send nothing on their own, and the nodes' ends."""
    pairs = [socket.socketpair() for _ in FACTS.nodes]
    channels = [Channel(ours.fileno(), ours.detach(), from_agent) for ours, _ in pairs]
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


def hear(attempt, other, sent: bytes) -> None:
    """Let the leader read and process everything that its second agent has sent."""
    while sent:
        try:
            sent = sent[other.send(sent, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            pass
        except OSError:  # the leader has dropped this agent
            return
        attempt._hear(attempt._agents[1])
    if attempt._inspection is not None:
        attempt._inspection.tick()


def held_bytes(run_dir: Path) -> int:
    return sum(path.stat().st_size for path in run_dir.rglob("*") if path.is_file())


@pytest.mark.parametrize("message", FROM_NODE_1, ids=lambda one: type(one).__name__)
def test_every_message_of_an_agent_is_understood(message):
    with attempt_of_two_nodes() as (attempt, others):
        before = held_bytes(attempt._run_dir)
        hear(attempt, others[1], odd_messages.line(plain(message)))
        assert attempt._first is None or isinstance(message, Failed | WorkerEnded | Ended)
        assert not attempt._agents[1].channel.ended
        assert held_bytes(attempt._run_dir) > before or not isinstance(message, File)


def test_file_with_a_name_that_is_not_utf_8_comes_home(tmp_path):
    name = "model/caf\udce9"
    write(tmp_path, {name: "weights"})
    first = assignments_of(LaunchSpec("run", tmp_path, Program(())), FACTS, [])[0]
    with attempt_of_two_nodes() as (attempt, others):
        channel = Channel(others[0].fileno(), others[0].detach(), from_leader)
        with closing(channel):
            LogSync(first).send_rest(channel, 75.0)
            attempt._hear(attempt._agents[0])
        assert (attempt._run_dir / name).read_text() == "weights"


@pytest.mark.parametrize("port", ["x", -1, True, None, "\ud800", 2**40])
def test_an_odd_port_of_node_0_is_that_node_s_failure(port):
    at = {"address": "10.10.1.1", "port": port}
    peer = {"address": "10.10.1.2", "port": 7}
    for message in (
        {"kind": "chosenport", "port": port},
        {"kind": "listening", "at": at},
        {"kind": "accepted", "ends": {"own": at, "peer": peer}},
    ):
        with pytest.raises(REFUSED):
            from_agent(odd_messages.line(message, b""))


def test_failure_lengthened_by_escapes_stays_a_valid_message(monkeypatch):
    sent = []
    monkeypatch.setattr(Attempt, "_send_all", lambda attempt, message: sent.append(message))
    with attempt_of_two_nodes() as (attempt, others):
        end = {**plain(REFUSED_END), "message": "\x1b" * 19_000}
        hear(attempt, others[1], odd_messages.line({"kind": "failed", "end": end}))
    assert from_leader(msgspec.json.encode(sent[-1])) == sent[-1]


@pytest.mark.parametrize("text", ["\x1b" * 4_000, "\x1b" * 100, "caf\udce9" * 500])
def test_report_lengthened_by_escapes_stays_a_valid_message(text):
    answer = msgspec.convert({"rank": 2, "gave_up": {"message": text, "frames": []}}, WorkerAnswer)
    report = Report(**msgspec.structs.asdict(answer))
    message = Inspected("7", report)
    assert from_agent(msgspec.json.encode(message)) == message


def test_full_disk_is_named_where_ranks_only_lost_peers(monkeypatch):
    """The missing records may not have fitted on it."""
    monkeypatch.setattr("launch.agent.led_run.full_disk", lambda path: f"{path}: the disk is full")
    lost = End(Kind.LOST_PEER, "node1", 8.0, 2, message="lost another worker")
    with attempt_of_two_nodes() as (attempt, others):
        hear(attempt, others[1], odd_messages.line(plain(WorkerEnded(lost))))
        assert attempt._judge().text.endswith("exit.json: the disk is full")
        hear(attempt, others[1], odd_messages.line(plain(WorkerEnded(KILLED))))
        assert attempt._judge() == KILLED


END = plain(KILLED)
ODD = {
    "of no kind": {"other": 1},
    "of an unknown kind": {"kind": "other\x1b[2J"},
    "of a kind of leaders": plain(Lost("it")),
    "two kinds": {"kind": "done", "end": END},
    "no code": {"kind": "ended", "code": "0"},
    "leaves with a number": {"kind": "ended", "code": 0, "leaves": 1},
    "a code that is no exit code": {"kind": "ended", "code": 256},
    "a time without end": {"kind": "stopping", "within_s": 1e300},
    "more time than the run's workers have": {"kind": "stopping", "within_s": 60.5},
    "another node": {**plain(HERE), "node": "node0"},
    "ranks of another node": {**plain(HERE), "ranks": [0, 1]},
    "a folder as the host": {**plain(HERE), "host": "../x"},
    "a host with a space": {**plain(HERE), "host": "host 1"},
    "a rank beyond the most": {
        "kind": "failed",
        "end": {**plain(REFUSED_END), "ranks": [MOST_RANKS]},
    },
    "a host of two lines": {**plain(HERE), "host": "one\ntwo"},
    "no address": {"kind": "nodeready", "host": "host1", "interface": None, "cores": "2"},
    "a port of the second agent": plain(Listening(Endpoint("10.10.1.2", 40_000))),
    "a port of torch of the second agent": plain(ChosenPort(40_000)),
    "a connection that the second agent accepted": plain(Accepted(NODE_0_END)),
    "a connection without port": {
        "kind": "connected",
        "ends": {**plain(NODE_1_END), "own": {"address": "10.10.1.2"}},
    },
    "a connection to a name": {
        "kind": "connected",
        "ends": {**plain(NODE_1_END), "own": {"address": "node1", "port": 7}},
    },
    "an odd end of a connection": {"kind": "broken", "ends": plain(NODE_1_END), "how": "oddly"},
    "an end and another field": {"kind": "failed", "end": plain(REFUSED_END), "lost": 0},
    "an end of another rank": plain(WorkerEnded(with_fields(KILLED, rank=0))),
    "an end of no rank": plain(WorkerEnded(REFUSED_END)),
    "a rank's end for a node's": plain(Failed(KILLED)),
    "a sentence for an end": {"kind": "failed", "end": "rank 2 on node1 failed"},
    "an end that is too long": {
        "kind": "failed",
        "end": {**plain(REFUSED_END), "message": "x" * 30_000},
    },
    "an end of an unknown kind": {"kind": "failed", "end": {**plain(REFUSED_END), "kind": "OVER"}},
    "a rank of another node": plain(Inspected("end", with_fields(REPORT, rank=0))),
    "an id that is a path": {**plain(InspectedAll("x")), "id": "../x"},
    "a hole": plain(file("workers/rank_00002.out", b"x", at=2**40)),
    "before the begin": plain(file("workers/rank_00002.out", b"x", at=-1)),
    "no base64": {**plain(file("workers/rank_00002.out", b"")), "data": "*"},
    "a lone surrogate": {**plain(HERE), "cores": "\ud800"},
    "a file of another rank": plain(file("workers/rank_00000.out", b"x")),
    "nested too deeply": {"kind": "failed", "end": odd_messages.DEEP},
    "an unknown field, nested too deeply": {"kind": "done", "more": odd_messages.DEEP},
    "a kind after brackets that are nested too deeply": {"more": odd_messages.DEEP, "kind": "done"},
    "no number": {"kind": "beat", "sent_unix_s": float("nan")},
}


@pytest.mark.parametrize("message", ODD.values(), ids=ODD)
def test_an_odd_message_is_that_agent_s_failure(message):
    with attempt_of_two_nodes() as (attempt, others):
        hear(attempt, others[1], odd_messages.line(message))
        cause = attempt._judge()
        assert cause.text.startswith("node1 sent an invalid message: ") and cause.node == "node1"
        assert cause.text.isprintable() and len(cause.text) < 500
        assert attempt._agents[1].channel.ended and not attempt._agents[0].channel.ended
        failure = explain(attempt._run_dir, 4, 1, cause)
        assert (failure.code, failure.text) == (1, f"error: {cause.text}")
        assert failure.cause == "node_lost"
        assert held_bytes(attempt._run_dir) < 1000


def pairs(first: list, second: list) -> list[list[dict]]:
    return [[plain(one), plain(two)] for one in first for two in second]


@fuzzed(nearly(pairs(FROM_NODE_1, FROM_NODE_1[-8:])))
def test_message_of_an_agent_does_no_more_than_fail_it(drawn):
    with attempt_of_two_nodes() as (attempt, others):
        sent = b"".join(map(odd_messages.line, drawn))
        hear(attempt, others[1], sent)
        assert attempt._first is None or attempt._first.node == "node1"
        assert held_bytes(attempt._run_dir) < len(sent) + 10_000
        attempt._inspect().finish()
        failure = explain(attempt._run_dir, 4, 1, attempt._judge())
        assert failure.code and failure.text.encode(errors="backslashreplace")


@fuzzed(nearly(pairs(TO_AGENT, TO_AGENT)))
def test_message_of_a_leader_does_no_more_than_end_an_agent(drawn):
    ours, theirs = socket.socketpair()
    with TemporaryDirectory() as folder, theirs:
        spec = LaunchSpec("run", Path(folder), Program(()))
        assignment = replace(assignments_of(spec, FACTS, [])[0], ranks=())
        channel = Channel(ours.fileno(), ours.detach(), from_leader)
        agent = NodeAttempt(assignment, channel, Signals(), Path(folder), WarmInterpreter())
        for message in drawn if isinstance(drawn, list) else [drawn]:
            theirs.sendall(odd_messages.line(message))
            agent._hear()
            if isinstance(message, dict) and not is_of_leader(message):
                assert agent._elsewhere
        failure = agent._elsewhere
        assert failure is None or isinstance(failure.message, str)
        assert agent._requested is None or 0 <= agent._requested.code < 256
        channel.close()


def is_of_leader(message) -> bool:
    try:
        from_leader(odd_messages.line(message, b""))
    except REFUSED:
        return False
    return True


WORKER = plain(WorkerAnswer(rank=0, pid=7, time_unix_s=8.0, **STACKS))
PROGRESS = {"rank": 0, "pid": 7, "time_unix_s": 8.0, "gave_up": None, "begun": 3, "places": [7]}


@contextmanager
def worker(folder: Path, answer):
    """Listen at the socket of rank 0, and send the parts of `answer` to the first that asks."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "rank_00000.sock"))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                try:
                    for part in answer:
                        connection.sendall(part)
                except OSError:  # nobody reads any more
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
    reports = [report, with_fields(report, rank=1)]
    node_of = {"0": "node0", "1": "node1"}
    views = views_of({"reports": reports, "node_of": node_of, "ends": {}})
    assert all(diagnosis.sentences(views)) and all(map(diagnosis.condition, views.values()))
    message = Inspected("7", report)
    assert from_agent(msgspec.json.encode(message)) == message


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
    assert not report.answers


def test_text_of_an_agent_reaches_terminal_without_control_characters(capsys):
    stalled = {"kind": "beat", "sent_unix_s": 5.0, "stands_s": 60.0, "waits_for": "/disk\x1b[2J"}
    with attempt_of_two_nodes() as (attempt, others):
        hear(attempt, others[1], odd_messages.line(stalled))
    assert "node1 has been waiting for /disk\\x1b[2J " in capsys.readouterr().out


def test_a_text_of_a_node_moves_no_cursor():
    group = Group((0, 1), 3)
    report = {"rank": 2, "threads": [{"name": "\x1b[2J", "main": True, "frames": []}]}
    report["groups"] = {"0\u202e": plain(group)}
    sent = {"kind": "inspected", "id": "7", "report": report}
    got = from_agent(odd_messages.line(sent, b""))
    assert got.report.threads[0].name == "\\x1b[2J" and got.report.groups == {"0\\u202e": group}
    sent = {"kind": "note", "text": "one\n\x1b[2Jtwo\r"}
    assert from_agent(odd_messages.line(sent, b"")).text == "one\n\\x1b[2Jtwo\\r"


def test_a_text_with_a_lone_surrogate_can_be_sent():
    frame = msgspec.convert({"file": "caf\udce9.py", "line": 7, "function": "f"}, Frame)
    assert frame.file == "caf\\udce9.py" and msgspec.json.encode(frame)
    assert msgspec.json.encode(Failed(End(Kind.REFUSED, "caf\udce9", 1.0, message="\udce9")))
