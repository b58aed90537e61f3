"""A stand-in for Python that makes the server fork, and acts as the forked process.

It is copied to a folder of the session, with the two names SOCKET and PYTHON filled in. It passes
on signals and the exit code; whatever kills it also kills the child. If a forked Python cannot do
the same as a new one (`-c`, `-I`, a sitecustomize), a new one is started.
"""

# No slow imports: pathlib would take as long as all the rest.
import contextlib
import json
import os
import resource
import signal
import socket
import sys

NAMESPACES = ("net", "uts", "mnt")
PASSED_ON = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGCONT")


def is_plain(argv):
    """Return whether a fork can run this: only `[-u] script ...` or `[-u] -m module ...`."""
    words = argv[1:] if argv[:1] == ["-u"] else argv
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(
        os.path.exists(os.path.join(folder, "sitecustomize.py")) for folder in folders if folder
    ):
        return False
    return len(words) > 1 if words[:1] == ["-m"] else bool(words) and words[0][:1] != "-"


def request(argv):
    ignored = [int(n) for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN]
    return {
        "argv": argv,
        "executable": sys.argv[0],
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)),
        "ignored": ignored,
        "namespaces": [os.stat(f"/proc/self/ns/{name}").st_ino for name in NAMESPACES],
    }


def main():
    argv = sys.argv[1:]
    server = socket.socket(socket.AF_UNIX)
    try:
        if not is_plain(argv):
            raise OSError
        server.connect(SOCKET)  # noqa: F821
    except OSError:
        os.execv(PYTHON, [PYTHON, *argv])  # noqa: F821
    body = json.dumps(request(argv)).encode()
    own = [os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    socket.send_fds(server, [len(body).to_bytes(8, "big")], [0, 1, 2, *own])
    server.sendall(body)
    replies = server.makefile("r")
    child = int(replies.readline())

    def pass_on(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for name in PASSED_ON:
        number = getattr(signal, name)
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, pass_on)
    for stream in (0, 1, 2):  # only the child uses these: a pipe must end when the child closes it
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    code = int(replies.readline() or "-9")
    if code < 0:  # end by the child's signal, without a core file
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    os._exit(code)


main()
