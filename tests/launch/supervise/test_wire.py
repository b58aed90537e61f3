"""Messages arrive whole, in order, and from whoever may send them."""

import json
import os
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import MusterError
from launch.supervise import mirror
from launch.supervise.mirror import Mirror
from launch.supervise.wire import MARK, Wire


def pair():
    ours, theirs = socket.socketpair()
    return Wire(ours.fileno(), ours.detach()), theirs


def test_noise_before_a_message_is_kept_apart():
    wire, other = pair()
    other.sendall(b"Welcome to node3!\n" + MARK + b'{"beat": true}\n' + MARK + b"{half")
    assert wire.receive() == [{"beat": True}] and wire.noise == ["Welcome to node3!"]
    other.sendall(b"\n")
    other.close()
    assert wire.receive() == [] and wire.ended
    wire.close()


@given(
    st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=50), max_size=3), max_size=20)
)
@settings(max_examples=50, deadline=None)
def test_messages_arrive_as_they_were_sent_in_whatever_pieces(messages):
    wire, other = pair()
    sent = b"".join(MARK + json.dumps(one).encode() + b"\n" for one in messages)
    got = []
    for at in range(0, len(sent), 7):
        other.sendall(sent[at : at + 7])
        got += wire.receive()
    assert got == messages
    other.close()
    wire.close()


def test_a_full_pipe_blocks_nobody():
    wire, other = pair()
    for _ in range(100):
        wire.send(data="x" * 50_000)
    assert wire.waiting_bytes > 1_000_000
    other.close()
    wire.flush()
    assert wire.waiting_bytes == 0  # there is nobody to take it
    wire.close()


def test_a_line_without_end_is_no_message():
    ours, other = socket.socketpair()
    wire = Wire(ours.fileno(), ours.detach(), line_bytes=1000)
    other.sendall(b"x" * 2000)
    assert wire.receive() == [] and wire.ended
    other.close()
    wire.close()


def test_a_node_s_files_come_back_as_they_are_written(tmp_path):
    there, here = tmp_path / "there", tmp_path / "here"
    (there / "workers").mkdir(parents=True)
    here.mkdir()
    reads, writes = os.pipe()
    sender, receiver = Wire(os.open(os.devnull, os.O_RDONLY), writes), Wire(reads, os.dup(1))
    source = Mirror(there)

    def bring():
        source.send_rest(sender)
        for message in receiver.receive():
            mirror.take(here, message)

    (there / "workers" / "rank_00000.out").write_bytes(b"step 1\n")
    (there / "summary.json").write_text('{"steps": 100000}')
    (there / "config.yaml").write_text("the node's own")
    bring()
    with (there / "workers" / "rank_00000.out").open("ab") as more:
        more.write(b"step 2\n")
    (there / "summary.json").write_text("{}")
    bring()
    assert (here / "workers" / "rank_00000.out").read_bytes() == b"step 1\nstep 2\n"
    assert (here / "summary.json").read_text() == "{}"
    assert not (here / "config.yaml").exists()
    sender.close()


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "config.yaml", "launch.json", "workers/../../x", "other/x", "x"]
)
def test_a_node_writes_its_own_files_only(name, tmp_path):
    with pytest.raises(MusterError, match="not its own to write"):
        mirror.take(tmp_path, {"file": name, "at": 0, "data": ""})
