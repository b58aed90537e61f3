"""Become another program, which the kernel ends when the parent process is gone.

python die_with_parent.py PARENT_PID PROGRAM [argument ...]

It needs the standard library alone. An agent cannot do this between fork and exec, since it has
threads.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_FOUND = 127  # as in a shell


def die_with_parent(number: int = signal.SIGKILL, parent: int | None = None) -> None:
    """Make the kernel send this process a signal when its parent is gone."""
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        os._exit(128 + signal.SIGKILL)


def main() -> None:
    parent = int(sys.argv[1])
    argv = sys.argv[2:]
    # torchrun would die of these signals, and leave its workers
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent=parent)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; its successor should not
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        os._exit(NOT_FOUND)


if __name__ == "__main__":
    main()
