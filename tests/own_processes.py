"""No test may leave a process: at its end, the session looks for its own, ends them and fails.

All processes that a test starts inherit the session's name. If a test does not pass, its processes
are ended immediately, whatever they are doing. sshd and Slurm give their processes another
environment, so in a box of its own (tests/cluster/boxed.sh) all processes count as the session's.
"""

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import psutil
import pytest

from tests import fork_server

# The session's name; a session that a test starts puts the outer session's name before its own.
SESSION = "TESTS_SESSION"
BY = "PYTEST_CURRENT_TEST"  # set by pytest: the test, and whether it is being set up or run
# How long processes may take to end after all tests are over.
ENDS_S = float(os.environ.get("TESTS_END_S", "120"))

did_not_pass = pytest.StashKey[bool]()
found: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of xdist inherits the name
        os.environ[SESSION] = f"{os.environ.get(SESSION, '')}/{secrets.token_hex(8)}"
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as on Ctrl-C


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not report.passed:
        item.stash[did_not_pass] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    done = yield  # by now its fixtures have ended what they started
    if item.stash.get(did_not_pass, False):
        end(lambda: [one for one in inherited() if environ(one).get(BY) == f"{item.nodeid} (call)"])
    return done


@pytest.hookimpl(trylast=True)  # when session fixtures and xdist's processes have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker:
        found.extend(left(inherited))
        session.exitstatus = session.exitstatus or int(bool(found))
    elif fork_server.OWN_BOX.exists():  # which would end them unnoticed when it ends
        session.config.workeroutput["left"] = left(everything)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    found.extend(getattr(node, "workeroutput", {}).get("left", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if found:
        terminalreporter.section("processes that tests left, now ended", red=True)
        for line in found:
            terminalreporter.line(line)


def left(look: Callable[[], list[psutil.Process]]) -> list[str]:
    """Give processes time to end; end the others and return a line about each."""
    deadline = time.monotonic() + ENDS_S
    while (processes := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = [in_words(one) for one in processes]
    end(look)
    return lines


def end(look: Callable[[], list[psutil.Process]]) -> None:
    """End all the processes, and those that they start in the meantime."""
    deadline = time.monotonic() + 60
    while (processes := look()) and time.monotonic() < deadline:
        for one in processes:
            with suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(processes, timeout=1)


def inherited() -> list[psutil.Process]:
    """The processes with this session's name."""
    name = os.environ[SESSION]
    return [one for one in everything() if environ(one).get(SESSION, "").startswith(name)]


def everything() -> list[psutil.Process]:
    """Return all processes except this one, its ancestors, the fork server's, and zombies."""
    own = {os.getpid(), *(one.pid for one in psutil.Process().parents()), *fork_server.processes()}
    processes = []
    for one in psutil.process_iter():
        with suppress(psutil.Error):
            if one.pid not in own and one.status() != psutil.STATUS_ZOMBIE:
                processes.append(one)
    return processes


def environ(process: psutil.Process) -> dict[str, str]:
    with suppress(psutil.Error, OSError):  # it has ended, or is another user's
        return process.environ()
    return {}


def in_words(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())[:300]
        return f"{process.pid}: {words}, of {environ(process).get(BY, 'a test on the testbed')}"
    return f"{process.pid}, which has ended since"
