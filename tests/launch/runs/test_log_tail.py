"""The output of workers is shown as it comes, whatever happens to its files."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from launch.runs import log_tail
from launch.runs.log_tail import Follower, RequestFile
from muster.worker.lost_peer import CONSEQUENCE
from tests.written import write

LINES = "".join(f"{number:099}\n" for number in range(10_000))


@pytest.fixture
def workers(tmp_path):
    """A function that appends to a worker's output."""

    def add(rank, text, ending="out"):
        (tmp_path / "workers").mkdir(exist_ok=True)
        with (tmp_path / "workers" / f"rank_{rank:05d}.{ending}").open("ab") as file:
            file.write(text.encode())

    return add


def test_rank_0_is_shown_as_it_is(tmp_path, workers, capfdbinary):
    follower = Follower(tmp_path)
    workers(0, "step 1\nste")
    workers(1, "not shown\n")
    follower.poll()
    workers(0, "p 2\n")
    workers(0, "a warning\n", "err")
    follower.poll()
    assert capfdbinary.readouterr() == (b"step 1\nstep 2\n", b"a warning\n")
    assert follower.tail == b"step 1\nstep 2\na warning\n"


def test_every_line_says_whose_it_is(tmp_path, workers, capfdbinary):
    follower = Follower(tmp_path, prefixes=True)
    follower.nodes = {1: "node1"}
    workers(1, "one\ntw")
    follower.poll()
    workers(1, "o\nthree")
    workers(10, "ten\n")
    follower.poll()
    follower.poll(last=True)
    out, _ = capfdbinary.readouterr()
    assert out == b"node1.1| one\nnode1.1| two\nnode?.10| ten\nnode1.1| three\n"


def test_half_a_character_in_the_name_of_a_node_is_shown(tmp_path, workers, capfdbinary):
    follower = Follower(tmp_path, prefixes=True)
    follower.nodes = {1: "node\ud800"}
    workers(1, "one\n")
    follower.poll()
    assert capfdbinary.readouterr().out == rb"node\ud800.1| one" + b"\n"


@pytest.mark.parametrize("prefixes", [False, True])
def test_line_on_a_lost_peer_is_not_shown_but_logged(tmp_path, workers, capfdbinary, prefixes):
    follower = Follower(tmp_path, prefixes=prefixes)
    in_full = Follower(tmp_path, prefixes=True, consequences=True)
    workers(0, f"a warning\n{CONSEQUENCE}error: lost rank 1 on a\nthe end\n", "err")
    workers(2, f"{CONSEQUENCE}error: lost rank 0 on a, rank 1 on a\n", "err")
    follower.poll(last=True)
    shown = capfdbinary.readouterr().err
    assert b"a warning\n" in shown and b"the end\n" in shown and b"lost rank" not in shown
    in_full.poll(last=True)
    shown = capfdbinary.readouterr().err
    assert b"error: lost rank 1 on a\n" in shown and b"error: lost rank 0 on a, rank 1" in shown


def test_traceback_that_ended_a_worker_is_left_to_the_cause(tmp_path, workers, capfdbinary):
    """A traceback that the program itself has printed is shown."""
    lines = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "KeyError: 'x'"]
    follower = Follower(tmp_path, prefixes=True)
    workers(1, "\n".join([*lines, "goes on\n"]), "err")
    follower.poll()
    record = {"rank": 1, "traceback": "\n".join([*lines, ""])}
    write(tmp_path, {"exits/rank_00001.json": record})
    workers(1, "".join(f"[rank1]: {line}\n" for line in lines), "err")
    follower.poll(last=True)
    assert capfdbinary.readouterr().err == b"".join(
        b"node?.1| %b\n" % line.encode() for line in [*lines, "goes on"]
    )
    assert follower.tail.endswith(b"KeyError: 'x'\ngoes on\n")


@pytest.mark.parametrize(
    ("prefixes", "shown"), [(False, b"\r 1%\nend\n"), (True, b" 1%\nnode?.0| end\n")]
)
def test_lost_peer_line_behind_progress_bar_is_hidden(
    tmp_path, workers, capfdbinary, prefixes, shown
):
    follower = Follower(tmp_path, prefixes=prefixes)
    workers(0, f"\r 1%{CONSEQUENCE}Traceback:\n{CONSEQUENCE}lost rank 1\nend\n", "err")
    follower.poll(last=True)
    assert capfdbinary.readouterr().err == b"node?.0| " * prefixes + shown


def test_a_progress_bar_is_shown_before_its_line_ends(tmp_path, workers, capfdbinary, monkeypatch):
    """It is redrawn after each `\\r`, as by tqdm, or before it, as by wget, every few seconds."""
    monkeypatch.setattr(log_tail, "BAR_PRINTED_EVERY_S", 3600.0)
    follower = Follower(tmp_path, prefixes=True)
    for look in ("\r 1%\r 2%", "\r 3%", "\r 4%"):
        workers(0, look)
        follower.poll()
    assert capfdbinary.readouterr().out == b"node?.0|  2%\n"
    monkeypatch.setattr(log_tail, "BAR_PRINTED_EVERY_S", -1.0)
    for look in ("", "\r 5%\r    \r", "6%\r", "7%\r", "7%\rdone\r\nplain\r", "\n\r\n"):
        workers(0, look)
        follower.poll()
    follower.poll(last=True)
    shown = b" 5%|6%|7%|done|plain||".replace(b"|", b"\nnode?.0| ")
    assert capfdbinary.readouterr().out == b"node?.0| " + shown.removesuffix(b"node?.0| ")


@pytest.mark.parametrize("drawn", ["\r{} of 100000", "{} of 100000\r", "{} of 100000, "])
def test_a_line_without_an_end_is_not_held_in_memory(tmp_path, workers, capfdbinary, drawn):
    follower = Follower(tmp_path, prefixes=True)
    for _ in range(10):
        workers(0, "".join(map(drawn.format, range(20_000))))
        follower.poll()
        (file,) = follower._files.values()
        assert len(file.unfinished) <= log_tail.LINE_BYTES
    follower.poll(last=True)
    assert b"19999 of 100000" in capfdbinary.readouterr().out[-100:]


def test_saved_lines_have_no_progress_bars_and_no_colors(tmp_path, workers, capfdbinary):
    """A line that tqdm writes above its bar stays."""
    bar = (
        "\r  0%|          | 0/3 [00:00<?, ?step/s]\r 33%|###       | 1/3 [00:00<00:00,  3.1step/s]"
    )
    workers(0, f"{bar}\r{' ' * 40}\r\x1b[32mstep 1\x1b[0m  loss 0.7\n{bar}\nthe end\n{bar}")
    follower = Follower(tmp_path, prefixes=True)
    follower.poll()
    follower.poll(last=True)
    assert capfdbinary.readouterr().out == b"node?.0| step 1  loss 0.7\nnode?.0| the end\n"


def test_tail_shows_the_last_lines_and_what_follows(tmp_path, workers, capfdbinary):
    workers(0, "".join(f"{number}\n" for number in range(1000)))
    follower = Follower(tmp_path, prefixes=True, tail=2)
    follower.poll()
    workers(0, "1000\n")
    workers(1, "new\n")
    follower.poll(last=True)
    shown = capfdbinary.readouterr().out.splitlines()
    assert shown == [b"node?.0| 998", b"node?.0| 999", b"node?.0| 1000", b"node?.1| new"]


def test_new_file_of_same_name_is_shown_from_start(tmp_path, workers, capfdbinary):
    """A requeued job moves the files of its last attempt aside."""
    follower = Follower(tmp_path)
    workers(0, "the first attempt said much\n")
    follower.poll()
    (tmp_path / "workers").rename(tmp_path / "aside")
    follower.poll()
    workers(0, "the second\n")
    follower.poll()
    follower.poll(last=True)
    assert capfdbinary.readouterr().out == b"the first attempt said much\nthe second\n"


@pytest.mark.parametrize("prefixes", [False, True])
def test_a_reader_that_takes_nothing_holds_nobody_up(tmp_path, workers, monkeypatch, prefixes):
    follower = Follower(tmp_path, prefixes=prefixes)
    workers(0, LINES)
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as out, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", out)
        follower.poll()  # a full pipe of 64 KiB would block it
        workers(0, "the end\n")
        found = b""
        while not found.endswith(b"the end\n"):
            follower.poll()
            found += os.read(reads, 100_000)
    os.close(reads)
    prefix = b"node?.0| " if prefixes else b""
    assert found.replace(prefix, b"") == LINES.encode() + b"the end\n"


def test_log_is_complete_on_a_terminal_that_does_not_wait(tmp_path, workers, monkeypatch):
    workers(0, LINES)
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    with os.fdopen(reads, "rb") as end, ThreadPoolExecutor() as pool:
        found = pool.submit(end.read)
        with os.fdopen(writes, "w") as out, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", out)
            Follower(tmp_path).poll(last=True)
    assert found.result() == LINES.encode()


def test_missing_folder_of_output_shows_nothing(tmp_path):
    Follower(tmp_path).poll(last=True)
    assert not any(tmp_path.iterdir())


@pytest.mark.timeout(60)
def test_fifo_instead_of_output_or_requests_blocks_nothing(tmp_path, workers, capfdbinary):
    requests = RequestFile(tmp_path)
    for name in ("requests/requests.jsonl", "workers/rank_00000.out"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    workers(1, "one\n")
    follower = Follower(tmp_path, prefixes=True)
    follower.poll(last=True)
    assert requests.new() == [] and capfdbinary.readouterr().out == b"node?.1| one\n"
