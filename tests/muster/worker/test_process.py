"""Helpers of processes are defined once; processes end with their agent, from the first moment."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from launch.agent.processes.workers import spawn
from launch.spec import RUN_MODULE, WORKER_MAIN, NodeCommand
from muster.checkout import CHECKOUT
from muster.worker import process
from tests.commands import begin
from tests.launch.submit import wait_until
from tests.written import executable

SOURCES = [
    path
    for folder in ("configs", "launch", "muster", "train")
    for path in CHECKOUT.glob(f"{folder}/**/*.py")
]
SAYS_SO = "import time\nprint('here', flush=True)\ntime.sleep(10_000)\n"
# Patterns of code that may occur only in process.py.
ONCE = {
    "the call prctl": r"\.prctl\(",
    "its options": r"^PR_SET_\w+ = ",
    "exit codes": r"^(?!LARGEST)\w+ = (75|93|124|127|130)\b(?!\.)|code == 75\b",
    "notices": r"= \(signal\.SIGUSR1, signal\.SIGUSR2\)",
    "the folders of a wheel": r"\"_checkout\"",
}
# All files that rename something, with the reason.
RENAME = {
    "launch/agent/log_sync.py": "it comes from a node in several messages",
    "launch/nodes/node_data.py": "a folder; on a node there is nothing of ours to import",
    "muster/run_files.py": "files of an earlier attempt are put aside",
    "muster/worker/process.py": "this is where files are written",
    "muster/writing.py": "a lock, which is held before it has its name",
    "train/checkpoints/storage.py": "folders",
    "train/loop/export.py": "a folder",
    "train/tasks/sources/cache.py": "several nodes write it at the same time",
}


@pytest.mark.parametrize("what", ONCE)
def test_helpers_of_processes_are_defined_once(what):
    pattern = re.compile(ONCE[what], re.MULTILINE)
    files = [path for path in SOURCES if pattern.search(path.read_text(encoding="utf-8"))]
    assert files == [CHECKOUT / "muster" / "worker" / "process.py"]


def test_a_file_is_written_whole_in_one_place():
    renames = re.compile(
        r"os\.(replace|rename)\(|\.rename\((?!columns|\")|(partial|into)\.replace\("
    )
    files = {
        str(path.relative_to(CHECKOUT))
        for path in SOURCES
        if renames.search(path.read_text(encoding="utf-8"))
    }
    assert files == RENAME.keys()


def test_unfinished_file_is_removed(tmp_path):
    path = tmp_path / "summary.json"
    process.write_whole(path, b"before")
    with pytest.raises(KeyboardInterrupt), process.atomic_replacement(path) as partial:
        partial.write_bytes(b"half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == [path] and path.read_bytes() == b"before"


@pytest.fixture
def own_scripts(tmp_path) -> list[tuple[str, ...]]:
    """Return commands as for torchrun, a worker, and a worker whose Python is a wrapper script."""
    (tmp_path / "tool.py").write_text(SAYS_SO)
    around = executable(tmp_path / "python", f'#!/bin/sh\n{sys.executable} "$@"\nexit $?\n')
    worker = (str(CHECKOUT / WORKER_MAIN), str(tmp_path / "tool.py"))
    return [
        (sys.executable, str(CHECKOUT / RUN_MODULE), "tool"),
        (sys.executable, *worker),
        (str(around), *worker),
    ]


@pytest.mark.parametrize("which", [0, 1], ids=["torchrun", "worker"])
def test_no_python_stands_between_an_agent_and_its_processes(which, own_scripts, tmp_path):
    argv = own_scripts[which]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    child = spawn(NodeCommand("node0", 0, argv, {}, str(tmp_path)), env, subprocess.DEVNULL)
    try:
        command = psutil.Process(child.pid).cmdline
        wait_until(command)  # the kernel shows it only when the new program has begun
        assert command() == list(argv)
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("which", [0, 1, 2], ids=["torchrun", "worker", "script"])
def test_processes_end_with_their_agent(which, own_scripts, tmp_path):
    """They end even if the agent is killed by kill -9."""
    code = (
        "import os, sys\n"
        "from launch.spec import NodeCommand\n"
        "from launch.agent.processes.workers import spawn\n"
        f"env = {{**os.environ, 'PYTHONPATH': {str(tmp_path)!r}}}\n"
        "env['MUSTER_AGENT_PID'] = str(os.getpid())\n"
        f"child = spawn(NodeCommand('node0', 0, {own_scripts[which]!r}, {{}}, '/'), env, None)\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with begin(sys.executable, "-c", code, cwd=CHECKOUT) as agent:
        child = psutil.Process(int(agent.stdout.readline()))
        assert agent.stdout.readline() == "here\n"
        below = child.children(recursive=True)
        agent.kill()
    assert psutil.wait_procs([child, *below], timeout=300)[1] == []


def test_a_notice_in_its_first_moment_does_not_end_torchrun(own_scripts, tmp_path):
    """A starting Python has no handler for the signal yet, so the agent makes the signal wait."""
    log = tmp_path / "log"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), process.AGENT_PID: str(os.getpid())}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with log.open("wb") as output:
        child = spawn(NodeCommand("node0", 0, own_scripts[0], {}, str(tmp_path)), env, output)
    for number in process.NOTICE_SIGNALS:
        child.send_signal(number)
    try:
        wait_until(lambda: child.poll() is not None or log.read_bytes())
        assert log.read_bytes() == b"here\n" and child.poll() is None
        status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
        blocked = int(re.search(r"SigBlk:\s*(\w+)", status)[1], 16)
        assert not any(blocked >> number - 1 & 1 for number in process.NOTICE_SIGNALS)
    finally:
        child.kill()
        child.wait()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


LIVES = """
import os, time
shell = os.getppid()
print("begun", flush=True)
while os.getppid() == shell:
    time.sleep(0.05)
print("lives", flush=True)
"""


def test_a_pasted_line_of_a_dry_run_outlives_its_shell(tmp_path):
    """As with `nohup ... &`, no agent has started torchrun here."""
    (tmp_path / "tool.py").write_text(LIVES)
    log = tmp_path / "log"
    words = [sys.executable, str(CHECKOUT / RUN_MODULE), "tool"]
    line = f"{shlex.join(words)} > {shlex.quote(str(log))} 2>&1 & read -r _"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env.pop(process.AGENT_PID, None)
    with subprocess.Popen(["sh", "-c", line], stdin=subprocess.PIPE, env=env) as shell:
        wait_until(lambda: log.exists() and log.read_text())
        (torchrun,) = psutil.Process(shell.pid).children()
    psutil.wait_procs([torchrun], timeout=300)
    assert log.read_text() == "begun\nlives\n"
