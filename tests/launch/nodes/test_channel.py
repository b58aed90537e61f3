"""Messages arrive whole, in order, and only from nodes that may send them."""

import ctypes
import json
import os
import socket
import struct
import threading
import time
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch.agent import log_sync
from launch.agent.log_sync import LogSync, ReceivedFiles
from launch.deadlines import ITSELF_STOPPED_AFTER_S, STOP_COUNTS_AS_S
from launch.nodes.channel import MESSAGE_MARK, Channel, RunningClock, wait_for_news, waiting_for
from launch.nodes.messages import (
    Beat,
    File,
    Note,
    OddMessage,
    Released,
    from_agent,
    from_leader,
)
from muster import run_files
from muster.errors import MusterError
from tests.launch.submit import wait_until
from tests.written import write

BEAT = MESSAGE_MARK + b'{"kind": "beat", "sent_unix_s": 1.0}\n'
RELEASED = MESSAGE_MARK + b'{"kind": "released"}\n'

SO_ATTACH_FILTER = 26  # on Linux: a program that decides how much of a packet is kept
BPF_RETURN = 0x06


def assignment(run_dir: Path, node: int) -> SimpleNamespace:
    """The assignment of a node whose only rank is its own number."""
    spec = SimpleNamespace(run_dir=run_dir)
    return SimpleNamespace(spec=spec, index=node, ranks=(node,), name=f"node{node}")


def source_of(run_dir: Path, node: int) -> LogSync:
    return LogSync(assignment(run_dir, node))


def take(run_dir: Path, message: File, node: int = 0, host: str | None = None) -> None:
    """Receive a file that this node sent; the node is on this host or the given one."""
    receiver(run_dir, node).take(message, host or socket.gethostname())


def whole(name: str, data: bytes = b"") -> File:
    return File(os.fsencode(name), 0, data, True)


def names_in(sent) -> list[str]:
    return [os.fsdecode(message.name) for message in sent]


@cache
def receiver(run_dir: Path, node: int) -> ReceivedFiles:
    return ReceivedFiles(run_dir, assignment(run_dir, node))


@contextmanager
def pair():
    """A channel, and the socket at its other end."""
    ours, theirs = socket.socketpair()
    with closing(Channel(ours.fileno(), ours.detach())) as channel, theirs:
        yield channel, theirs


@contextmanager
def pipe():
    """The two ends of a pipe, each as a channel."""
    reads, writes = os.pipe()
    sender = Channel(os.open(os.devnull, os.O_RDONLY), writes)
    receiver = Channel(reads, os.dup(1), from_agent)
    with closing(sender), closing(receiver):
        yield sender, receiver


@pytest.fixture
def channel_and_other():
    with pair() as both:
        yield both


def test_noise_before_a_message_is_kept_apart(channel_and_other):
    channel, other = channel_and_other
    other.sendall(
        b"Welcome to node3!\n" + MESSAGE_MARK + b'{"beat": true}\n' + MESSAGE_MARK + b"{half"
    )
    assert channel.receive() == [{"beat": True}] and channel.noise == ["Welcome to node3!"]
    other.close()
    assert channel.receive() == [] and channel.ended


def test_message_behind_shell_output_without_newline_is_read(channel_and_other):
    """The output may be a terminal's title, which may even contain our mark."""
    channel, other = channel_and_other
    title = b"\x1b]0;me@muster:~\x07"
    other.sendall(title + MESSAGE_MARK + b'{"beat": true}\n')
    assert channel.receive() == [{"beat": True}] and channel.noise == [title.decode()]


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=50), max_size=3), max_size=20)
)
@settings(max_examples=50, deadline=None)
def test_messages_arrive_as_they_were_sent_in_whatever_pieces(messages):
    sent = b"".join(MESSAGE_MARK + json.dumps(one).encode() + b"\n" for one in messages)
    got = []
    with pair() as (channel, other):
        for at in range(0, len(sent), 7):
            other.sendall(sent[at : at + 7])
            got += channel.receive()
    assert got == messages


def test_a_full_pipe_blocks_nobody(channel_and_other):
    channel, other = channel_and_other
    for _ in range(100):
        channel.send(Note("x" * 50_000))
    assert channel.waiting_bytes > 1_000_000
    other.close()
    channel.flush()
    assert channel.waiting_bytes == 0  # there is nobody to take it


@pytest.mark.parametrize("ends", [False, True])
def test_message_on_one_channel_ends_the_wait_for_all(ends):
    with pair() as (channel, other), pair() as (quiet, _), pair() as (over, gone):
        gone.close()
        assert over.receive() == [] and over.ended  # nobody waits for this one
        other.close() if ends else other.sendall(b"x")
        assert wait_for_news([quiet, channel, over], 300.0) == {channel}
        channel.receive()
        assert wait_for_news([quiet, channel, over], 0.0) == set()


def test_wait_for_news_ends_when_unsent_data_can_be_sent(channel_and_other):
    channel, other = channel_and_other
    channel.write(b"x" * 10_000_000)
    assert channel.waiting_bytes and wait_for_news([channel], 0.0) == set()
    while channel.waiting_bytes:
        other.recv(1 << 20)
        if wait_for_news([channel], 0.0):
            channel.receive()
    assert wait_for_news([channel], 0.0) == set()


def test_message_that_came_during_a_stall_counts_as_sign_of_life(channel_and_other, monkeypatch):
    """A slow disk may cause the stall; the other side was not silent."""
    now_s = [0.0]
    monkeypatch.setattr("launch.nodes.channel.running_s", lambda: now_s[0])
    channel, other = channel_and_other
    channel.receive()
    other.sendall(BEAT)
    now_s[0] = 20.0
    assert channel.silent_s < 1.0
    channel.receive()
    now_s[0] = 30.0
    channel.receive()
    assert channel.silent_s == 10.0


@contextmanager
def connection():
    """A channel over TCP, and the socket at its other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    with closing(Channel(ours.fileno(), ours.detach())) as channel, theirs:
        yield channel, theirs


def lose_packets(other: socket.socket) -> None:
    """Have the kernel drop all packets for this end, unanswered, as on a dead link."""
    drop = ctypes.create_string_buffer(struct.pack("HBBI", BPF_RETURN, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop))
    other.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def test_a_machine_that_answers_nothing_is_cut_off(monkeypatch):
    monkeypatch.setattr("launch.nodes.channel.AGENT_LOST_WHEN_SILENT_S", 0.5)
    with connection() as (channel, other):
        channel.write(b"x")
        assert not channel.is_cut_off
        lose_packets(other)
        channel.write(b"x")
        wait_until(lambda: channel.is_cut_off)


@pytest.mark.parametrize("make", [connection, pair])
def test_a_process_that_does_not_read_is_not_cut_off(make, monkeypatch):
    """Its kernel answers, although it takes no more data."""
    monkeypatch.setattr("launch.nodes.channel.AGENT_LOST_WHEN_SILENT_S", -1.0)
    with make() as (channel, _):
        channel.write(b"x" * 10_000_000)
        assert channel.waiting_bytes
        for _ in range(10):
            assert not channel.is_cut_off
            time.sleep(0.1)  # meanwhile the kernel keeps asking


def held_up(channel, other, monkeypatch, *beats_s: float) -> list[float]:
    """Return a clock of whole seconds; the other side only sends beats, at the given times."""
    now_s = [0.0]
    left = list(beats_s)

    def pass_a_second(_: float) -> None:
        now_s[0] += 1.0
        while left and left[0] <= now_s[0]:
            left.pop(0)
            other.sendall(BEAT)

    monkeypatch.setattr("launch.nodes.channel.running_s", lambda: now_s[0])
    monkeypatch.setattr("time.sleep", pass_a_second)
    channel.receive()
    return now_s


def test_messages_wait_for_a_reader_that_stands_still_for_a_minute(channel_and_other, monkeypatch):
    """It is alive, but waiting for its disk; an agent that left meanwhile would count as lost."""
    channel, other = channel_and_other
    channel.decode = from_leader
    now_s = held_up(channel, other, monkeypatch, *range(60))
    channel.send(Note("x" * 1_000_000))
    other.sendall(RELEASED)
    channel.drain(10.0)
    assert 60.0 < now_s[0] < 75.0 and channel.waiting_bytes
    assert Released() in channel.receive()


def test_files_wait_for_a_reader_that_stands_still_for_a_minute(
    channel_and_other, tmp_path, monkeypatch
):
    channel, other = channel_and_other
    channel.decode = from_leader
    now_s = held_up(channel, other, monkeypatch, *range(60))
    for file in (run_files.METRICS, run_files.OUTPUT):
        write(tmp_path, {str(file.path(tmp_path, rank=0)): b"x" * 1_500_000})
    other.sendall(RELEASED)
    source_of(tmp_path, 0).send_rest(channel, 10.0)
    assert 60.0 < now_s[0] < 75.0
    assert Released() in channel.receive()


def beat_of(channel, other) -> Beat:
    """Send a beat from another thread, as the heartbeat does, and return it."""
    thread = threading.Thread(target=channel.beat)
    thread.start()
    thread.join()
    return from_leader(other.recv(10_000).removeprefix(MESSAGE_MARK))


def test_a_beat_says_what_the_main_thread_waits_for(channel_and_other, monkeypatch):
    channel, other = channel_and_other
    now_s = held_up(channel, other, monkeypatch)
    now_s[0] = 2.0
    assert not beat_of(channel, other).stands_s  # its main loop still runs
    with waiting_for("/disk/record.json"):
        now_s[0] = 40.0
        beat = beat_of(channel, other)
    assert (beat.stands_s, beat.waits_for) == (38.0, "/disk/record.json")
    beat = beat_of(channel, other)
    assert beat.stands_s == 40.0
    assert beat.waits_for.startswith("beat_of (tests/launch/nodes/")
    with waiting_for("its --prologue"):
        now_s[0] = 80.0
        channel.receive()  # its loop goes on
        assert beat_of(channel, other).waits_for == "its --prologue"


@pytest.mark.parametrize(
    "line",
    [b'{"kind": "beat"}', b'{"kind": "bea', b'{"\xff": 1}', b'{"a": ' + b"[" * 99_999]
    + [b'{"kind": "beat", "sent_unix_s": 1e999}', b'{"kind": "beat", "sent_unix_s": true}'],
)  # fmt: skip
def test_refused_message_stands_as_odd_between_the_others(channel_and_other, line):
    channel, other = channel_and_other
    channel.decode = from_leader
    other.sendall(BEAT + MESSAGE_MARK + line + b"\n" + RELEASED)
    first, odd, last = channel.receive()
    assert (first, last) == (Beat(1.0), Released()) and channel.has_message
    assert isinstance(odd, OddMessage) and str(odd).isprintable() and len(str(odd)) < 500


def test_a_line_without_end_is_no_message(channel_and_other, monkeypatch):
    monkeypatch.setattr("launch.nodes.channel.LINE_BYTES", 1000)
    channel, other = channel_and_other
    other.sendall(b"x" * 2000)
    assert channel.receive() == [] and channel.ended


def test_a_node_s_files_come_back_as_they_are_written(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    source, output = source_of(there, 0), "workers/rank_00000.out"
    own = {"summary.json": {"steps": 100_000}, "config.yaml": "the node's own"}
    write(there, {output: "step 1\n", **own})
    for message in sent_by(source):
        take(here, message)
    with (there / output).open("ab") as more:
        more.write(b"step 2\n")
    write(there, {"summary.json": {}})
    for message in sent_by(source):
        take(here, message)
    assert (here / output).read_bytes() == b"step 1\nstep 2\n"
    assert (here / "summary.json").read_text() == "{}"
    assert not (here / "config.yaml").exists()


@pytest.mark.parametrize(
    "name",
    ["../x", "/etc/passwd", "config.yaml", "launch.json", "workers/../../x", "other/x", "x"]
    + ["model/../../x", "checkpoints/step_00000001/state.json", "summary.json.0.partial"]
    + ["model.partial/x", "model/x\0", ""],
)
def test_a_node_writes_its_own_files_only(name, tmp_path):
    with pytest.raises(MusterError, match="a file that it may not write"):
        take(tmp_path, whole(name))


@pytest.mark.parametrize(
    "name",
    ["exits/rank_00000.json", "results/rank_00000.pkl", "exits/rank_1.json", "summary.json"]
    + ["agents/node_00000.json", "environment/other.json", "model/x", "metrics/rank_00002.jsonl"],
)
def test_a_node_writes_no_file_of_another(name, tmp_path):
    with pytest.raises(MusterError, match="a file that it may not write"):
        take(tmp_path, whole(name), node=1, host="mine")
    for own in ("exits/rank_00001.json", "agents/node_00001.json", "environment/mine.json"):
        take(tmp_path, whole(own), node=1, host="mine")
        assert (tmp_path / own).exists()


def test_node_of_unknown_host_writes_no_environment_file(tmp_path):
    """It was refused immediately, and sends files that an earlier run has left there."""
    receiver(tmp_path, 0).take(whole("environment/node0.json"), None)
    assert list(tmp_path.iterdir()) == []


def test_any_name_below_a_folder_comes_home(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    names = ["model/x.partial/y", "model/a\nb", "model/caf\udce9", "tensorboard/events\n1"]
    write(there, dict.fromkeys(names, "weights"))
    for message in sent_by(source_of(there, 0)):
        take(here, message)
    assert [(here / name).read_text() for name in names] == ["weights"] * len(names)


@pytest.mark.timeout(60)
def test_fifo_in_run_folder_is_named_and_not_sent(tmp_path, capsys):
    there = write(tmp_path / "there", {"workers/rank_00000.err": "x", "exits/x": ""})
    for name in ("workers/rank_00000.out", "exits/rank_00000.json"):
        os.mkfifo(there / name)
    source = source_of(there, 0)
    sent = [name for _ in range(2) for name in names_in(sent_by(source))]
    assert sent == ["workers/rank_00000.err"]
    printed = capsys.readouterr().err.splitlines()
    assert sorted(printed) == [
        f"note: {there}/exits/rank_00000.json was not sent: not a regular file",
        f"note: {there}/workers/rank_00000.out was not sent: not a regular file",
    ]


def everything(run_dir, ranks):
    """Create each kind of file that workers and agents write, for `ranks` on this host."""
    words = {"host": socket.gethostname(), "name": ".out.tfevents.1"}
    for file in run_files.FILES:
        for rank in ranks:
            fields = {**words, "rank": rank, "node": rank, "attempt": 0}
            wanted = {name: fields[name] for name in fields if f"{{{name}}}" in file.pattern}
            path = file.path(run_dir, **wanted)
            path = path / "deep" / "file" if file.pattern.endswith(run_files.BELOW) else path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.pattern.encode() * (60_000 if file is run_files.MODEL else 1))


def sent_by(source):
    """The messages that one `LogSync` sends in one go to an end that reads everything."""
    with pipe() as (sender, receiver):
        source.send_rest(sender, 75.0)
        found = receiver.receive()
        while sender.waiting_bytes:
            sender.flush()
            found += receiver.receive()
        return found


def test_every_file_that_a_node_writes_comes_home(tmp_path):
    """Whole files appear only with their last byte: a reader at home never sees half a model."""
    there, here = tmp_path / "there", tmp_path / "here"
    everything(there, (0,))
    home = {file.pattern for file in run_files.FILES if file.sent != "never"}
    messages = sent_by(source_of(there, 0))
    assert {run_files.matching(name).pattern for name in names_in(messages)} == home
    (model,) = {name for name in names_in(messages) if name.startswith("model/")}
    parts = [one for one in messages if one.name == model.encode()]
    assert len(parts) > 1 and [one.last for one in parts] == [False] * (len(parts) - 1) + [True]
    for message in messages:
        assert message is not parts[-1] or not (here / model).exists()
        take(here, message)
    arrived = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert all((here / path).read_bytes() == (there / path).read_bytes() for path in arrived)
    assert {run_files.matching(path.as_posix()).pattern for path in arrived} == home
    # other users can neither read nor write files that will be unpickled
    private = [path for path in arrived if run_files.matching(path.as_posix()).private]
    assert private and all((here / path).stat().st_mode & 0o777 == 0o600 for path in private)


def test_nodes_that_share_a_disk_send_each_file_once(tmp_path):
    everything(tmp_path, (0, 1))
    names = [{*names_in(sent_by(source_of(tmp_path, node)))} for node in (0, 1)]
    host = socket.gethostname()
    assert names[0] & names[1] == {f"environment/{host}.json", f"traffic/{host}.csv"}  # same host
    assert "summary.json" in names[0] and "metrics/rank_00001.jsonl" in names[1]


def test_file_replaced_during_sending_is_sent_again_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sync, "WAITING_BYTES", 100)
    there, here, name = tmp_path / "there", tmp_path / "here", "profile/rank_00000.json"
    write(there, {name: b"a" * 900_000, "new": b"b" * 300_000})
    source = source_of(there, 0)
    with pipe() as (sender, receiver):
        assert source._send(sender)  # part of it is still waiting
        (there / "new").replace(there / name)
        while source._send(sender) or sender.waiting_bytes:
            for message in receiver.receive():
                take(here, message)
            sender.flush()
        for message in receiver.receive():
            take(here, message)
    assert (here / name).read_bytes() == b"b" * 300_000


class Narrow:
    """A channel whose messages nobody takes."""

    def __init__(self):
        self.sent, self.waiting_bytes = [], 0

    def send(self, message):
        self.sent.append(message)
        self.waiting_bytes += len(msgspec.json.encode(message))


def test_fast_growing_file_does_not_delay_other_files(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sync, "CHUNK_BYTES", 100)
    monkeypatch.setattr(log_sync, "WAITING_BYTES", 300)
    output, metrics = "workers/rank_00000.out", "metrics/rank_00000.jsonl"
    write(tmp_path, {output: b"x" * 1_000, metrics: '{"step": 1}\n'})
    source, names = source_of(tmp_path, 0), []
    for _ in range(10):
        with (tmp_path / output).open("ab") as more:
            more.write(b"x" * 1_000)
        channel = Narrow()
        assert source._send(channel)
        names += names_in(channel.sent)
    assert names.count(metrics) == 1 and names.count(output) > 5


def test_file_that_appears_during_a_turn_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(log_sync, "WAITING_BYTES", 100)
    write(tmp_path, {"workers/rank_00000.out": "x", "exits/rank_00000.json": "{}"})
    source = source_of(tmp_path, 0)
    assert source._send(Narrow())  # its turn is not over
    write(tmp_path, {"agents/node_00000.json": "{}"})
    sent = names_in(sent_by(source))
    assert "agents/node_00000.json" in sent


def test_a_full_disk_at_home_is_one_line(tmp_path):
    (tmp_path / "summary.json.0.partial").symlink_to("/dev/full")
    with pytest.raises(MusterError, match=r"summary.json: the disk is full"):
        take(tmp_path, whole("summary.json", b"x"))


@pytest.mark.parametrize("stopped_s", [40.0, 100_000.0])
def test_a_stop_counts_as_little_as_one_look(stopped_s):
    now = [1000.0]
    clock = RunningClock(lambda: now[0])
    for _ in range(20):
        now[0] += 1.0
        clock()
    assert clock() == pytest.approx(20.0)
    now[0] += stopped_s
    assert clock() == pytest.approx(20.0 + STOP_COUNTS_AS_S)
    now[0] += ITSELF_STOPPED_AFTER_S
    assert clock() == pytest.approx(
        20.0 + STOP_COUNTS_AS_S + ITSELF_STOPPED_AFTER_S
    )  # as on a busy machine
