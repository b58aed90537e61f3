"""A run on this machine, whatever its kernel offers."""

import sys

from launch.spec import assignments_of
from tests.launch.planned import SPEC, local
from tests.launch.submit import run_well
from tests.written import write

# Runs in each Python process of a run. It keeps the names that are used only after a check of
# `sys.platform`, and the names that psutil needs on Linux.
AS_ON_MACOS = """
import fcntl, os, resource, select, signal, socket, time
ONLY_ON_LINUX = {
    socket: "TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_CORK TCP_INFO TCP_QUICKACK TCP_SYNCNT SO_PEERCRED "
    "SO_PASSCRED SO_BINDTODEVICE SO_DOMAIN SO_PROTOCOL SO_MARK SOCK_CLOEXEC SOCK_NONBLOCK",
    select: "epoll POLLRDHUP",
    os: "sched_getaffinity sched_setaffinity pidfd_open memfd_create eventfd pipe2 O_PATH "
    "O_TMPFILE O_DIRECT splice copy_file_range posix_fadvise posix_fallocate getrandom setns "
    "unshare fdatasync getresuid setresuid getxattr setxattr",
    signal: "SIGRTMIN SIGRTMAX SIGPOLL SIGPWR SIGSTKFLT SIGCLD sigtimedwait sigwaitinfo "
    "pidfd_send_signal",
    resource: "prlimit RUSAGE_THREAD",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK F_OFD_SETLKW F_ADD_SEALS F_SETLEASE",
    time: "CLOCK_BOOTTIME pthread_getcpuclockid",
}
for module, names in ONLY_ON_LINUX.items():
    for name in names.split():
        vars(module).pop(name, None)
"""


def test_nodes_of_this_machine_do_not_connect_to_node_0():
    launcher = local(nodes="2")
    for facts in (launcher.probe(), launcher.assume()):
        assert not any(one.nodes_connect for one in assignments_of(SPEC, facts, []))


def test_two_nodes_run_without_the_names_of_linux(tmp_path, monkeypatch):
    write(tmp_path, {"site/sitecustomize.py": AS_ON_MACOS})
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    flags = ["--launcher", "local", "--nodes", "2", "--workers", "manual"]
    look = "import socket; print({rank}, hasattr(socket, 'TCP_KEEPIDLE'))"
    run_well(*flags, "--", sys.executable, "-c", look, cwd=tmp_path, python=sys.executable)
    printed = [path.read_text() for path in sorted(tmp_path.glob("logs/*/workers/rank_*.out"))]
    assert printed == ["0 False\n", "1 False\n"]
