"""Printing waits for nobody, and nothing of it is lost."""

import os
import sys
import threading
import time
from contextlib import contextmanager

from launch.runs.terminal import unhurried, waiting_bytes
from tests.launch.submit import wait_until


@contextmanager
def a_pipe(monkeypatch):
    """stdout and stderr are one pipe that holds 64 KiB; gives the end to read from."""
    reads, writes = os.pipe()
    with (
        monkeypatch.context() as patched,
        os.fdopen(writes, "w") as out,
        os.fdopen(os.dup(writes), "w") as err,
    ):
        patched.setattr(sys, "stdout", out)
        patched.setattr(sys, "stderr", err)
        yield reads


def test_a_full_pipe_holds_nobody_up_and_order_is_kept(monkeypatch):
    got = []

    def read():
        while not (got and got[-1].endswith(b"end\n")):
            got.append(os.read(pipe, 65_536))

    reader = threading.Thread(target=read)
    with a_pipe(monkeypatch) as pipe, unhurried():
        for number in range(2000):
            print(f"{number:0100}", file=sys.stderr if number % 2 else sys.stdout)
        print("end")
        assert waiting_bytes() > 100_000
        reader.start()
    reader.join()
    assert b"".join(got) == b"".join(b"%0100d\n" % number for number in range(2000)) + b"end\n"
    os.close(pipe)


def test_that_the_reader_has_gone_is_said_once(monkeypatch):
    broken = []
    with a_pipe(monkeypatch) as pipe, unhurried():
        os.close(pipe)

        def is_refused() -> bool:
            try:
                print("x")
            except BrokenPipeError as error:
                broken.append(error)
            return bool(broken)

        assert wait_until(is_refused)
        for _ in range(100):
            is_refused()
            time.sleep(0.002)
    assert len(broken) == 1


def test_without_files_printing_is_as_it_was(capsys):
    with unhurried():
        print("as it was")
    assert capsys.readouterr().out == "as it was\n"
