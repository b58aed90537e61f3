"""A Python that has imported the libraries and forks at each client's request.

`python -m tests.fork_server.server SOCKET` runs until its standard input ends. A child has its
client's descriptors, folder, environment, cores and namespaces. None of our modules is imported.
"""

import atexit
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

# Everything that is slow to import in torchrun, an agent or a worker.
LIBRARIES = (
    "torch",
    "torch._dynamo",  # imported by an optimizer's first step
    "torch.distributed.run",
    "torch.distributed.elastic.rendezvous.static_tcp_rendezvous",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.profiler",
    "torch.utils.data",
    "accelerate.commands.launch",
    "evaluate",
    "h5py",
    "jinja2",
    "msgspec",
    "rich.table",
    "safetensors.torch",
    "submitit",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.bert.modeling_bert",
    "yaml",
    "ClusterShell.NodeSet",
)
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class Job:
    """A child and the connection to the client that requested it."""

    def __init__(self, pid: int, client: socket.socket) -> None:
        self.pid, self.client = pid, client
        self.ended = os.pidfd_open(pid)
        asker = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4)
        # for `tests.fork_server.children`
        self.record = Path(f"{sys.argv[1]}.{int.from_bytes(asker, sys.byteorder)}")
        self.record.write_text(str(pid))


def main() -> None:
    sys.path.remove(str(Path.cwd()))  # nothing below may be imported from this checkout
    for name in LIBRARIES:
        if importlib.util.find_spec(name.partition(".")[0]):  # `make versions` installs only a few
            importlib.import_module(name)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    gc.collect()
    gc.freeze()  # children share the pages
    asked = serve(listener)
    if asked is not None:  # this is a child
        end(asked)


def serve(listener: socket.socket) -> dict[str, Any] | None:
    """Fork at each request; in a child, return the request."""
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    ready.register(0, selectors.EVENT_READ)
    own = [Path(f"/proc/self/ns/{name}").stat().st_ino for name in ("net", "uts", "mnt")]
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                client = listener.accept()[0]
                if (asked := begin(client, ready, own)) is not None:
                    listener.close()
                    return asked
            elif key.data is None:  # the end of standard input
                return None
            elif key.fileobj == key.data.ended:
                reap(key.data, ready)
            elif key.data.client.fileno() >= 0:  # else it is reaped: both events came together
                # The client is gone, so its process must end, with everything that it has started.
                ready.unregister(key.data.client)
                end_tree(key.data.pid)


def begin(
    client: socket.socket, ready: selectors.BaseSelector, own: list[int]
) -> dict[str, Any] | None:
    """Fork for `client`; in the child, return its request."""
    head, descriptors, _, _ = socket.recv_fds(client, 8, 6)
    with client.makefile("rb") as request:
        body = request.read(int.from_bytes(head, "big"))
    try:
        asked = json.loads(body)
    except ValueError:  # the client was killed in the middle of its request
        client.close()
        return None
    pid = os.fork()
    if pid == 0:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        jobs = {key.data for key in ready.get_map().values() if key.data is not None}
        ready.close()
        for job in jobs:
            job.client.close()
            os.close(job.ended)
        client.close()
        settle(asked, descriptors, own)
        return dict(asked)
    for fd in descriptors:
        os.close(fd)
    job = Job(pid, client)
    with suppress(OSError):  # the client is already gone, as `serve` will see
        client.sendall(f"{pid}\n".encode())
    ready.register(job.ended, selectors.EVENT_READ, job)
    ready.register(client, selectors.EVENT_READ, job)
    return None


def end_tree(pid: int) -> None:
    """Kill a child and all its descendants, since no other ancestor would do so."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    os.kill(pid, signal.SIGKILL)
    for process in below:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def reap(job: Job, ready: selectors.BaseSelector) -> None:
    _, status = os.waitpid(job.pid, 0)
    ready.unregister(job.ended)
    os.close(job.ended)
    job.record.unlink(missing_ok=True)
    with suppress(OSError, KeyError, ValueError):
        ready.unregister(job.client)
    with suppress(OSError):
        job.client.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
    job.client.close()


def settle(asked: dict[str, Any], descriptors: list[int], own: list[int]) -> None:
    """Take over the client's streams, namespaces, folder, environment and cores."""
    os.setsid()
    for stream, fd in enumerate(descriptors[:3]):
        os.dup2(fd, stream)
    for fd, wanted, inode in zip(descriptors[3:], asked["namespaces"], own, strict=True):
        if wanted != inode and LIBC.setns(fd, 0):
            raise OSError(ctypes.get_errno(), "setns")
    for fd in descriptors:
        os.close(fd)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    if "MUSTER_AGENT_PID" in os.environ:
        # A worker checks that it descends from its agent. Here its client does, and ends it.
        os.environ["MUSTER_AGENT_PID"] = str(os.getppid())
    os.sched_setaffinity(0, asked["cores"])
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)


def end(asked: dict[str, Any]) -> NoReturn:
    """Run the program, and end with its exit code."""
    code: object = 0
    try:
        run(asked)
    except SystemExit as exit_:
        code = exit_.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:  # noqa: BLE001  # as the interpreter does
        sys.excepthook(type(error), error, error.__traceback__)
        code = 130 if isinstance(error, KeyboardInterrupt) else 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    # Tearing down the libraries would take longer than most programs here.
    os._exit(int(code or 0) & 0xFF)


def run(asked: dict[str, Any]) -> None:
    """Run the program as a new interpreter would."""
    words = list(asked["argv"])
    unbuffered = words[0] == "-u" or "PYTHONUNBUFFERED" in os.environ
    words = words[1:] if words[0] == "-u" else words
    sys.executable = asked["executable"]
    sys.orig_argv = [sys.executable, *asked["argv"]]
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=unbuffered)  # type: ignore[union-attr]
    random.seed()
    for name, generator in (("numpy", "random"), ("torch", "default_generator")):
        getattr(sys.modules[name], generator).seed()  # its seed was drawn at import
    extra = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [folder for folder in extra.split(os.pathsep) if folder]
    # As in a new interpreter, this module stays after the program's end. runpy would drop it, and
    # its process groups would then end their threads, which wait for the lock (GIL) held here.
    own = sys.modules["__main__"] = types.ModuleType("__main__")
    # runpy warns of a module that is already imported, such as torchrun, also by run_module.py.
    sys.modules.pop(words[1] if len(words) > 1 else "", None)
    if words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        own.__file__ = words[0]
        own.__loader__ = loader = importlib.machinery.SourceFileLoader("__main__", words[0])
        exec(loader.source_to_code(loader.get_data(words[0]), words[0]), own.__dict__)


if __name__ == "__main__":
    main()
