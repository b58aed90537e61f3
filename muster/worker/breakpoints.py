"""`breakpoint()` in a worker, which has no terminal: it waits for one, and takes it.

How it works: workers have no input, so pdb would fail at once. Instead the program waits at the
breakpoint until `muster jobs debug RUN --rank N` brings a connection through its agent; pdb then
reads and writes there. Without a connection, or when it is lost, the program goes on waiting. A
variable PYTHONBREAKPOINT that is set stays in charge.

This file is loaded into every worker by its path. It needs the standard library alone, of Python
3.8 or newer.
"""

from __future__ import annotations

import contextlib
import io
import os
import pdb  # noqa: T100 (what this file is about)
import queue
import socket
import sys
from types import FrameType

GREETING = "c goes on to the next breakpoint, q leaves the debugger, Ctrl-D leaves it waiting"


class Breakpoints:
    """What `breakpoint()` calls in a worker."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.where: str | None = None  # file, line and function, while the program waits at one
        self._connections: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()
        self._debugger: Debugger | None = None
        self._is_left = False  # by `q`: breakpoints are passed from then on

    def attach(self, connection: socket.socket) -> None:
        """Have the debugger use this connection; from any thread."""
        connection.settimeout(None)
        self._is_left = False
        self._connections.put(connection)

    def stop(self, frame: FrameType) -> None:
        """Stop at this line, unless the user has left the debugger."""
        if self._is_left and self._connections.empty():
            return
        if self._debugger is None:
            self._debugger = Debugger(self)
        if self._debugger.is_alone:
            self._debugger.hang_up()
        if self._debugger.is_alone or not self._connections.empty():
            self._debugger.use(self.wait_at(frame))
        self._debugger.set_trace(frame)

    def leave(self) -> None:
        """Stop at no breakpoint until somebody attaches again."""
        self._is_left = True

    def wait_at(self, frame: FrameType) -> socket.socket:
        """The next connection."""
        self.where = place_of(frame)
        run = os.environ.get("MUSTER_RUN_ID", "RUN")
        sys.stderr.write(
            f"rank {self.rank} waits at a breakpoint, {self.where}: "
            f"muster jobs debug {run} --rank {self.rank}\n"
        )
        sys.stderr.flush()
        while True:  # in small pieces: a signal's handler runs between them
            try:
                return self._connections.get(timeout=0.2)
            except queue.Empty:
                continue


class Debugger(pdb.Pdb):
    """pdb at the other end of a connection."""

    def __init__(self, owner: Breakpoints) -> None:
        super().__init__(stdin=io.StringIO(), stdout=io.StringIO(), nosigint=True)
        self.prompt = f"(rank {owner.rank}) "
        self._owner = owner
        self._connection: socket.socket | None = None

    @property
    def is_alone(self) -> bool:
        """Whether nobody is at the other end."""
        if self._connection is None:
            return True
        try:
            return self._connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True

    def use(self, connection: socket.socket) -> None:
        """Read and write there from now on."""
        self.hang_up()
        self._connection = connection
        self.stdin = connection.makefile("r", encoding="utf-8", errors="replace")
        self.stdout = connection.makefile("w", encoding="utf-8", errors="replace")
        self.message(GREETING)

    def preloop(self) -> None:
        """Commands are read: the program waits here."""
        assert self.curframe is not None
        self._owner.where = place_of(self.curframe)

    def postloop(self) -> None:
        """The program goes on."""
        self._owner.where = None

    def hang_up(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            for one in (self.stdin, self.stdout, self._connection):
                with contextlib.suppress(OSError):
                    one.close()
            self._connection = None

    def do_EOF(self, arg: str) -> bool | None:  # noqa: N802 (pdb calls it so)
        """The connection has ended: wait for the next one, at the same place."""
        assert self.curframe is not None
        self.hang_up()
        self.use(self._owner.wait_at(self.curframe))
        self.print_stack_entry(self.stack[self.curindex])
        return None

    def do_quit(self, arg: str) -> bool | None:
        """Leave the debugger; the program goes on, and stops at no breakpoint any more."""
        self.message("left; the program goes on")
        self._owner.leave()
        self.hang_up()
        self.set_continue()
        return True

    do_q = do_exit = do_quit

    def message(self, msg: str) -> None:
        """Print a line there; where nobody is any more, the next read ends, too."""
        with contextlib.suppress(OSError, ValueError):
            print(msg, file=self.stdout, flush=True)

    def error(self, msg: str) -> None:
        """Print what went wrong there."""
        self.message(f"*** {msg}")


def place_of(frame: FrameType) -> str:
    """File, line and function."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
