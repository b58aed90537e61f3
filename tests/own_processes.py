"""No test leaves a process: at its end the session looks for its own, ends them, and fails.

What a test starts inherits the session's name. A test that does not pass has what it started ended
at once, whatever it was in the middle of. sshd and Slurm give their processes another environment:
in a box of its own (tests/cluster/boxed.sh), all processes are the session's.
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

# The name of the session; one that a test starts has its outer session's before its own.
SESSION = "TESTS_SESSION"
BY = "PYTEST_CURRENT_TEST"  # pytest's own: the test, and whether it is being set up or runs
# How long those that are ending have for it, when all tests are over.
ENDS_S = float(os.environ.get("TESTS_END_S", "120"))

did_not_pass = pytest.StashKey[bool]()
found: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # one of xdist's has it from the process it serves
        os.environ[SESSION] = f"{os.environ.get(SESSION, '')}/{secrets.token_hex(8)}"
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as at Ctrl-C


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if not report.passed:
        item.stash[did_not_pass] = True
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    done = yield  # its fixtures, too, have ended what they started
    if item.stash.get(did_not_pass, False):
        end(lambda: [one for one in inherited() if environ(one).get(BY) == f"{item.nodeid} (call)"])
    return done


@pytest.hookimpl(trylast=True)  # fixtures of the session, and xdist's processes, have ended
def pytest_sessionfinish(session: pytest.Session) -> None:
    is_worker = hasattr(session.config, "workerinput")
    if not is_worker:
        found.extend(left(inherited))
        session.exitstatus = session.exitstatus or int(bool(found))
    elif fork_server.OWN_BOX.exists():  # which takes them along when it ends, as nobody would see
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
    """What does not end by itself, in words; it is ended."""
    deadline = time.monotonic() + ENDS_S
    while (processes := look()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lines = [in_words(one) for one in processes]
    end(look)
    return lines


def end(look: Callable[[], list[psutil.Process]]) -> None:
    """End them all, and what they start meanwhile."""
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
    """All processes but this one, those it descends from, the fork server's, and what is over."""
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
