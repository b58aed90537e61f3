"""Started processes are ended, others are spared, and the ended processes are known."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import psutil
import pytest

from launch.agent.processes import process_tree
from launch.agent.processes.workers import spawn
from launch.spec import NodeCommand
from muster.checkout import CHECKOUT
from tests.commands import begin
from tests.launch.submit import wait_until

SLEEP = "import time; print('here', flush=True); time.sleep(10_000)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP


@pytest.fixture
def start_process():
    """Start processes, distinguish them from earlier ones, and end those that are left."""
    with ExitStack() as stack:

        def start_child(code, **env):
            process = stack.enter_context(begin(sys.executable, "-c", code, env=env))
            stack.callback(process.kill)
            assert process.stdout.readline() == "here\n"
            return process

        start_child.others = process_tree.children()
        yield start_child


def test_ended_processes_are_known_with_their_state(start_process, monkeypatch):
    monkeypatch.setattr(process_tree, "KILLED_PROCESS_IS_GONE_S", 300.0)
    plain, stopped = start_process(SLEEP, RANK="3"), start_process(SLEEP, RANK="4")
    stopped.send_signal(signal.SIGSTOP)
    nobody = start_process(SLEEP)

    def have_ended() -> bool:
        return not any(psutil.pid_exists(one.pid) for one in (plain, nobody))

    victims = process_tree.end_descendants(300, have_ended, excluded=start_process.others)
    found = {one.pid: (one.rank, one.signal, one.state, one.survives) for one in victims}
    assert found == {
        plain.pid: (3, "SIGTERM", "", False),
        stopped.pid: (4, "SIGKILL", "had been stopped by a signal (SIGSTOP)", False),
        nobody.pid: (None, "SIGTERM", "", False),
    }


def test_a_worker_that_its_parent_ends_first_is_known(start_process, monkeypatch):
    """torchrun does so on SIGTERM, before anybody has looked at the worker."""
    really = process_tree._signal

    def at_once(process, number):
        for child in process.children():
            child.kill()
            wait_until(lambda child=child: child.status() == psutil.STATUS_ZOMBIE)
        really(process, number)

    monkeypatch.setattr(process_tree, "_signal", at_once)
    worker = f"env={{**os.environ, 'RANK': '5'}}, args=[sys.executable, '-c', {SLEEP!r}]"
    begins = f"subprocess.Popen({worker}, start_new_session=True); import time; time.sleep(10_000)"
    start_process(f"import os, subprocess, sys; {begins}")  # it is the worker that prints `here`
    victims = process_tree.end_descendants(300, excluded=start_process.others)
    assert [one.rank for one in victims] == [None, 5]


def test_process_of_another_user_is_not_waited_for(start_process, monkeypatch):
    """The same holds for a worker in an endless wait for a disk."""

    def refuse(process, number):
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(process_tree, "KILLED_PROCESS_IS_GONE_S", 0.5)
    monkeypatch.setattr(psutil.Process, "send_signal", refuse)
    process = start_process(SLEEP, RANK="0")
    (victim,) = process_tree.end_descendants(0.2, excluded=start_process.others)
    assert victim.survives and victim.pid == process.pid


def test_children_of_others_are_spared(start_process):
    other = start_process(SLEEP)
    before = process_tree.children()
    own = start_process(SLEEP)
    process_tree.end_descendants(300, excluded=before)
    assert not psutil.pid_exists(own.pid) and other.poll() is None


def test_background_process_of_a_helper_is_not_ended(start_process):
    """For example, ssh leaves a connection that the user's other logins share."""
    words = f"[sys.executable, '-c', {SLEEP!r}], stdout=subprocess.DEVNULL"
    leaves = f"import subprocess, sys; subprocess.Popen({words}); "
    process = start_process(leaves + DEAF)
    wait_until(psutil.Process(process.pid).children)
    children = psutil.Process(process.pid).children()
    process_tree.end_started([process], 0.3)
    assert process.poll() == -signal.SIGKILL
    assert children[0].status() != psutil.STATUS_ZOMBIE
    children[0].kill()


def test_reaping_orphans_takes_no_exit_code_from_who_waits_for_it(start_process):
    codes = {7: True, 8: False}  # one process in `excluded`, one in this session
    own = [
        subprocess.Popen([sys.executable, "-c", f"raise SystemExit({code})"], start_new_session=new)
        for code, new in codes.items()
    ]
    for one in own:
        os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    process_tree.reap_orphans(excluded=[own[0].pid])
    assert [one.wait() for one in own] == list(codes)


def test_child_of_an_agent_dies_with_it():
    """Even after kill -9. It also ignores signals that would kill torchrun."""
    survives = "import os, signal\n"
    survives += "for one in (signal.SIGUSR1, signal.SIGUSR2): os.kill(os.getpid(), one)\n"
    code = (
        "import os, subprocess, sys\n"
        "from launch.spec import NodeCommand\n"
        "from launch.agent.processes.workers import spawn\n"
        f"argv = (sys.executable, '-c', {survives + SLEEP!r})\n"
        "child = spawn(NodeCommand('node0', 0, argv, {}, '/'), os.environ, None)\n"
        "print(child.pid, flush=True)\n"
        "print('ended with', child.wait(), flush=True)\n"
    )
    with begin(sys.executable, "-c", code, cwd=CHECKOUT) as agent:
        child = psutil.Process(int(agent.stdout.readline()))
        assert agent.stdout.readline() == "here\n"  # its program is running
        agent.kill()
    child.wait(300)


def test_missing_program_is_an_error_with_its_name(tmp_path):
    with pytest.raises(Exception, match="nowhere: no such program"):
        spawn(NodeCommand("node0", 0, ("nowhere",), {}, str(tmp_path)), dict(os.environ), None)
