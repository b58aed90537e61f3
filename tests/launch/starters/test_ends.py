"""A starter reports which rank has ended, with which code or signal, and when."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.agent.processes.workers import spawn
from launch.ends import WorkerEnd
from launch.spec import NodeCommand
from launch.starters.base import NodeStart, WarmInterpreter, starter_of
from launch.starters.torchrun import READ_BYTES, TorchrunProcess
from muster.errors import UsageError
from tests.fork_server import skip_if_quick
from tests.launch.submit import wait_until

# Rank 1 fails; then rank 0 ends only when the file `go` exists, even if it gets SIGTERM.
FAILS_WHILE_ANOTHER_WAITS = """
import os, signal, sys, time
def wait_for(name):
    while not os.path.exists(name): time.sleep(0.02)
if os.environ['RANK'] == '1':
    wait_for('ready')
    sys.exit(3)
signal.signal(signal.SIGTERM, lambda *_: None)
open('ready', 'w').close()
wait_for('go')
"""


@pytest.mark.slow
@pytest.mark.parametrize("node", ["torchrun"], indirect=True)
def test_end_time_is_when_torchrun_noticed_not_when_reported(node):
    """torchrun names the worker only after it has ended all others, which may take long."""
    skip_if_quick()
    workload = node.begin(FAILS_WHILE_ANOTHER_WAITS)
    log = next((node.folder / "run").rglob("*.log"))
    node.wait(lambda: workload.ends() or "closing signal" in log.read_text())
    assert workload.ends() == []
    noticed = time.time()
    time.sleep(0.5)
    (node.folder / "go").touch()
    node.finish(workload)
    (end,) = workload.ends()
    assert end.rank == 1 and end.exit_code == 3 and end.time_unix_s <= noticed


@pytest.mark.parametrize("node", ["manual"], indirect=True)
def test_output_like_torchruns_ends_no_rank(node):
    """Only torchrun's own log is searched for such lines."""
    line = "failed (exitcode: 3) local_rank: 0 (pid: 7) of binary: python"
    workload = node.finish(node.begin(f"import os\nos.write(2, b'{line}\\n')"))
    assert [end.exit_code for end in workload.ends()] == [0, 0]


RANKS = range(2000)
LINE = "E1 failed (exitcode: 3) local_rank: {} (pid: 7) of binary: python"
WRITES = f"""
import os
for rank in range({len(RANKS)}):
    os.write(1, b"{LINE}\\n".replace(b"{{}}", b"%d" % rank))
"""


@pytest.fixture
def torchrun(tmp_path):
    """A starter that writes nothing itself, and its log, into which a test writes."""
    with (tmp_path / "log").open("a+b") as log:
        command = NodeCommand("localhost", 0, (sys.executable, "-c", ""), {}, str(tmp_path))
        process = TorchrunProcess(command, NodeStart(RANKS, dict(os.environ), log, spawn))
        psutil.Process(process.pid).wait()
        yield process, log


def test_log_line_between_two_reads_is_not_lost(torchrun):
    """torchrun and the agent share the position in this file, so each write moves it."""
    process, log = torchrun
    ends: list[WorkerEnd] = []
    with subprocess.Popen([sys.executable, "-c", WRITES], stdout=log) as writer:
        while writer.poll() is None:
            ends += process.new_ends()
    ends += process.new_ends()
    assert [(end.rank, end.exit_code) for end in ends] == [(rank, 3) for rank in RANKS]


@pytest.mark.slow
def test_a_last_word_after_much_output_is_seen_at_once(torchrun):
    process, log = torchrun
    for text in ("x" * 79 + "\n") * (READ_BYTES // 40), LINE.format(1), "\n":
        log.write(text.encode())
    log.flush()
    assert [end.rank for end in process.new_ends()] == [1]


def test_program_line_like_torchruns_names_no_foreign_rank(torchrun):
    process, log = torchrun
    log.write(f"{LINE.format(len(RANKS))}\n{LINE.format(0)}\n".encode())
    log.flush()
    assert [end.rank for end in process.new_ends()] == [0]


@pytest.mark.slow
def test_starter_of_package_that_node_lacks_is_watched(tmp_path):
    """Such a starter starts torchrun, or each worker separately."""
    with pytest.raises(UsageError, match="unknown 'absent'"):
        starter_of("absent")
    command = NodeCommand(
        "localhost", 0, (sys.executable, "-c", "raise SystemExit(4)"), {}, str(tmp_path),
        starter="absent", rank=2,
    )  # fmt: skip
    with Path(tmp_path / "log").open("a+b") as log:
        node = NodeStart((2, 3), dict(os.environ), log, spawn)
        process = WarmInterpreter().start(command, node)
        wait_until(lambda: process.code() is not None)
        (end,) = process.new_ends()
    assert (end.rank, end.exit_code) == (2, 4)
