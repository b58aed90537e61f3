"""A run whose disk is full ends with one line that names a file on it, and leaves no record."""

import errno
import os
import socket
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from launch.agent.agent import NodeAttempt, Signals
from launch.agent.processes import process_tree
from launch.ends import Kind
from launch.nodes.channel import Channel
from launch.nodes.messages import Failed, from_agent, from_leader
from launch.runs import run_record
from launch.starters.base import WarmInterpreter
from muster.checkout import CHECKOUT
from muster.writing import CannotWrite, writing
from tests.commands import call, cause_in
from tests.fork_server import skip_if_quick
from tests.launch.pretended import assignment
from tests.launch.submit import SUBMIT

SMALL = """
mount -t tmpfs -o size=400k none "$0" && "$@"
code=$?
cp -r "$0" "$0.copy"  # what is mounted is gone with the namespace
exit $code
"""


PRINTS = """
import os
while os.environ["RANK"] == "0":
    print("x" * 1000)
"""


def on_a_small_disk(tmp_path, *words):
    """Run a command with a small disk for its runs; return its result, and a copy of the run."""
    skip_if_quick()
    (logs := tmp_path / "logs").mkdir()
    argv = [sys.executable, SUBMIT, "--logs-dir", str(logs), "--run-id", "full", *words]
    done = call("unshare", "--mount", "sh", "-c", SMALL, logs, *argv, cwd=tmp_path)
    return done, tmp_path / "logs.copy" / "full"


needs_root = pytest.mark.needs("root", "namespaces")  # to make a small disk


def named_in(done, run_dir) -> str:
    """Return the cause that was printed last by a run that had no space to record it."""
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert not list(run_dir.rglob("*.partial")) and not (run_dir / "exit.json").exists()
    return cause_in(done.stderr)


@needs_root
def test_program_that_fills_disk_is_reported_as_disk_full(tmp_path):
    """Its output fills the disk, so no rank and no agent has space to record the cause."""
    (tmp_path / "prints.py").write_text(PRINTS)
    flags = ["--launcher", "local", "--nodes", "2", "--workers", "manual", "--quiet"]
    done, run_dir = on_a_small_disk(tmp_path, *flags, "--", "./prints.py")
    cause = named_in(done, run_dir)
    assert f"{socket.gethostname()}: {tmp_path}/logs/full/" in cause and "disk is full" in cause


@needs_root
def test_disk_full_of_records_ends_run_without_traceback(tmp_path):
    flags = ["--task", "synthetic", "--nodes", "2", "--sync", "all_reduce", "--evaluate", "never"]
    flags += ["--max-steps", "1000000", "--epochs", "1000000"]
    done, run_dir = on_a_small_disk(tmp_path, *flags)
    message = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert message and all("the disk is full" in line for line in message)
    assert f"{tmp_path}/logs/full/" in named_in(done, run_dir)


LAST_WORDS = [
    "from launch.runs import run_record; run_record.end(Path('/dev/null/run'), 1, 'it failed')",
    "from muster.worker import worker_main; worker_main.write_json(Path('/dev/null/end.json'), {})",
]


@pytest.mark.parametrize("writes", LAST_WORDS)
def test_unwritable_last_record_does_not_end_its_writer(writes):
    """The stderr of an agent, and of a worker, is a file on the same disk."""
    code = f"import sys; from pathlib import Path; {writes}; print('it goes on', flush=True)"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=full
        )
    assert done.stdout == b"it goes on\n"


def test_leader_without_room_records_disk_full_as_cause(tmp_path):
    spec = assignment(tmp_path).spec
    full = OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "job.json"))
    for context in (writing(tmp_path / "job.json"), nullcontext()):
        with pytest.raises((CannotWrite, OSError)), run_record.ending(spec), context:
            raise full
        end = run_record.read_end(tmp_path)
        assert end["cause"] == "disk_full" and "job.json: the disk is full" in end["message"]
        (tmp_path / "exit.json").unlink()


def test_an_agent_that_has_no_room_says_so_to_its_leader(tmp_path, monkeypatch):
    def raises(assignment):
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "config.yaml"))

    monkeypatch.setattr("launch.agent.agent.make_room", raises)
    monkeypatch.setattr(process_tree, "end_descendants", lambda *_, **__: [])
    (tmp_path / "agents").mkdir()
    (tmp_path / "scratch").mkdir()
    leader, own = socket.socketpair()
    with leader, closing(Channel(own.fileno(), own.detach(), from_leader)) as channel:
        elsewhere = replace(assignment(tmp_path), disk_marker="elsewhere")
        scratch = tmp_path / "scratch"
        attempt = NodeAttempt(elsewhere, channel, Signals(), scratch, WarmInterpreter())
        assert attempt.run() == 1
        received = Channel(os.dup(leader.fileno()), os.dup(leader.fileno()), from_agent)
        with closing(received):
            message = received.first(Failed)
    assert message is not None
    end = message.end
    assert (end.kind, end.exit_code) == (Kind.REFUSED, 1)
    assert f"{socket.gethostname()}: {tmp_path}/config.yaml: the disk is full" in end.text
