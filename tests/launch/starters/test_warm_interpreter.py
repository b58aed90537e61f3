"""`--workers preload` imports once for all attempts of a run."""

import json
import os
import signal
import subprocess
import time

import psutil
import pytest

from launch.agent.processes import process_tree

pytestmark = pytest.mark.parametrize("node", ["preload"], indirect=True)
# A module that counts its imports.
COUNTED = "open('imports', 'a').write('once\\n')\nimport os\nseen = os.environ['MUSTER_ATTEMPT']\n"
SHOW = """
import json, os, signal, sys
import counted
how = {
    "env": dict(os.environ), "argv": sys.argv, "path": sys.path, "cwd": os.getcwd(),
    "ppid": os.getppid(), "seen": counted.seen, "leads": os.getsid(0) == os.getpid(),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "handlers": [str(signal.getsignal(number)) for number in (1, 2, 3, 14, 15)],
    "descriptors": sorted(os.listdir("/proc/self/fd")), "stdin": os.readlink("/proc/self/fd/0"),
    "random": os.urandom(8).hex(),
}
with open(f"shown_{os.environ['MUSTER_ATTEMPT']}_{os.environ['RANK']}", "w") as file:
    json.dump(how, file)
"""
FAILS = SHOW + "if os.environ['RANK'] == '1': raise ValueError('no data')\n"
SLEEPS = SHOW + "import time\nprint('sleeps', flush=True)\ntime.sleep(10_000)\n"


@pytest.fixture(autouse=True)
def counted(node):
    (node.folder / "packages" / "counted.py").write_text(COUNTED)


def attempt(node, number, text=SHOW, *words, **env):
    env = {"MUSTER_ATTEMPT": str(number), **env}
    return node.begin(text, *words, modules="counted", port=20_000 + number, **env)


def shown(node, number, rank=0):
    return json.loads((node.folder / f"shown_{number}_{rank}").read_text())


def imports(node):
    return len((node.folder / "imports").read_text().split())


def test_the_attempt_after_a_failure_is_forked_from_the_same_import(node):
    first = node.finish(attempt(node, 0, FAILS))
    assert {end.rank: end.exit_code for end in first.ends()} == {0: 0, 1: 1}, node.output()
    second = node.finish(attempt(node, 1, SHOW, "--resume", "auto"))
    assert {end.rank: end.exit_code for end in second.ends()} == {0: 0, 1: 0}, node.output()
    assert first.pids == second.pids == [shown(node, 1)["ppid"]]
    assert imports(node) == 1 and shown(node, 1)["seen"] == "0"
    assert shown(node, 1)["argv"] == ["t.py", "--resume", "auto"]


@pytest.mark.slow
def test_worker_of_later_attempt_starts_like_first_one(node):
    """Its environment is replaced, not added to; handlers, descriptors and session are new."""
    node.finish(attempt(node, 0, MUSTER_ONCE="once"))
    node.finish(attempt(node, 1, MUSTER_TWICE="twice \udcff \u00e4"))
    for rank in (0, 1):
        one, two = shown(node, 0, rank), shown(node, 1, rank)
        for name in ("MUSTER_ATTEMPT", "MASTER_PORT"):
            assert one["env"].pop(name) != two["env"].pop(name)
        assert one["env"].pop("MUSTER_ONCE") == "once"
        assert two["env"].pop("MUSTER_TWICE") == "twice \udcff \u00e4"
        assert one.pop("random") != two.pop("random")
        assert one == two
        assert two["leads"] and two["blocked"] == [] and two["stdin"] == os.devnull


@pytest.mark.slow
def test_each_attempt_has_its_own_log(node):
    """The log of the last attempt is moved away before the next one."""
    node.finish(attempt(node, 0, "import os\nos.write(2, b'first')"))
    log = next((node.folder / "run").rglob("*.log"))
    log.rename(log.with_name("earlier.log"))
    del node.env["MUSTER_RUN_DIR"]  # then workers have no files of their own
    node.finish(attempt(node, 1, "import os\nos.write(2, b'second')"))
    assert log.read_text().count("second") == 2


@pytest.mark.slow
def test_workers_are_ended_between_attempts_and_the_interpreter_is_not(node):
    first = attempt(node, 0, SLEEPS)
    node.wait(lambda: node.output().count("sleeps") == 2)
    process_tree.end_descendants(60.0, excluded=node.others, staying=node.warm.pids)
    node.wait(lambda: not first.runs)
    assert {end.signal for end in first.ends()} == {signal.SIGTERM}
    second = node.finish(attempt(node, 1))
    assert first.pids == second.pids and imports(node) == 1


@pytest.mark.slow
def test_a_signal_for_workers_reaches_them_and_ends_no_interpreter(node):
    """The interpreter also survives a signal that comes after they have ended."""
    first = attempt(node, 0, SLEEPS)
    node.wait(lambda: node.output().count("sleeps") == 2)
    (pid,) = first.pids
    os.kill(pid, signal.SIGTERM)
    node.finish(first)
    assert {end.signal for end in first.ends()} == {signal.SIGTERM}
    os.kill(pid, signal.SIGTERM)
    second = node.finish(attempt(node, 1))
    assert second.pids == [pid] and second.failure() is None


@pytest.mark.slow
def test_dead_interpreter_is_replaced(node):
    first = node.finish(attempt(node, 0))
    os.kill(first.pids[0], signal.SIGKILL)
    psutil.Process(first.pids[0]).wait()
    second = node.finish(attempt(node, 1))
    assert second.failure() is None and second.pids != first.pids and imports(node) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"modules": "counted,decimal"}, {"PYTHONHASHSEED": "1"}, {"LD_BIND_NOW": "1"}]
)
def test_changed_environment_is_imported_anew(node, how):
    """A prologue may set what Python, the loader or a library reads once."""
    first = node.finish(attempt(node, 0))
    env = {"MUSTER_ATTEMPT": "1", "modules": "counted", **how}
    second = node.finish(node.begin(SHOW, **env))
    assert second.failure() is None and second.pids != first.pids and imports(node) == 2
    node.wait(lambda: not psutil.pid_exists(first.pids[0]))


@pytest.mark.slow
def test_interpreter_that_still_imports_is_ended(node):
    slow = COUNTED + "import time\ntime.sleep(10_000 * (seen == '0'))\n"
    (node.folder / "packages" / "counted.py").write_text(slow)
    first = attempt(node, 0)
    node.wait((node.folder / "imports").exists)
    process_tree.end_descendants(60.0, excluded=node.others, staying=node.warm.pids)
    assert not first.runs
    second = node.finish(attempt(node, 1))
    assert second.failure() is None and not (node.folder / "shown_0_0").exists()


@pytest.mark.slow
def test_ended_interpreter_leaves_no_process(node):
    workload = node.finish(attempt(node, 0))
    assert node.warm.pids == workload.pids
    node.warm.end()
    assert node.warm.pids == [] and not psutil.pid_exists(workload.pids[0])


@pytest.mark.slow
def test_interpreter_that_survives_sigkill_is_left(node, monkeypatch):
    """For example, it is waiting for a disk; its agent goes on without it."""
    monkeypatch.setattr("launch.starters.preload.KILLED_PROCESS_IS_GONE_S", 0.1)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", lambda process: None)
        workload = node.finish(attempt(node, 0))
        node.warm.end()
    assert psutil.pid_exists(workload.pids[0])


@pytest.mark.slow
def test_an_environment_larger_than_a_pipe_delays_nobody(node):
    """Each part is sent once the other side has room for it."""
    first = node.finish(attempt(node, 0))
    os.kill(first.pids[0], signal.SIGSTOP)
    begun = time.monotonic()
    second = attempt(node, 1, MUSTER_LONG="x" * 120_000, MUSTER_LONGER="y" * 120_000)
    assert second.runs and time.monotonic() - begun < 60
    os.kill(first.pids[0], signal.SIGCONT)
    node.finish(second)
    assert second.pids == first.pids and len(shown(node, 1)["env"]["MUSTER_LONGER"]) == 120_000


@pytest.mark.slow
def test_interpreter_that_has_not_forked_is_ended(node):
    """Between two attempts it ignores SIGTERM, so that signal would be lost."""
    first = node.finish(attempt(node, 0))
    assert first.may_have_workers
    os.kill(first.pids[0], signal.SIGSTOP)
    second = attempt(node, 1)
    assert second.runs and not second.may_have_workers
    second.kill_starter()
    node.wait(lambda: not second.runs)
