"""On a GPU: which ranks are named and end if one is killed, or waits in `.cpu()` for a kernel.

Two ranks share the GPU through gloo; NCCL needs a GPU for each rank, so it is
tested with one rank.
"""

import json
import sys
import time
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call, cause_in
from tests.launch.submit import start, wait_until

pytestmark = pytest.mark.needs("GPU")

KERNEL_S = 60  # approximately; no test of two ranks waits for its end
NCCL_KERNEL_S = 20  # more than LATE_S: NCCL's watchdog ends a rank only when its kernels are over
LATE_S = 8
PROGRAM = """
import os, signal, sys, time
from datetime import timedelta

import torch
import torch.distributed as dist

how, kernel_s, limit_s = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.cuda.set_device(0)
dist.init_process_group("nccl" if how == "nccl" else "gloo", timeout=timedelta(seconds=limit_s))
ones = torch.ones(3, device="cuda")
dist.all_reduce(ones)
ones.cpu()
if dist.get_rank() == dist.get_world_size() - 1:
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    for _ in range(kernel_s):
        torch.cuda._sleep(2_000_000_000)  # cycles: about a second
    if how == "nccl":
        dist.all_reduce(ones)
    print("waits", flush=True)
    ones.cpu()
    print("goes on", flush=True)
    if how == "nccl":
        time.sleep(200)  # the watchdog ends it
dist.all_reduce(ones)
"""


class Run:
    """A run of `PROGRAM` in this folder."""

    def __init__(self, folder: Path, how: str, workers: int = 2, limit_s: int = 600) -> None:
        (folder / "lost.py").write_text(PROGRAM)
        self.folder = folder
        self.path = folder / "logs" / how
        words = ["--nproc-per-node", str(workers), "--run-id", how, "--no-snapshot", "--"]
        kernel_s = NCCL_KERNEL_S if how == "nccl" else KERNEL_S
        words += ["lost.py", how, str(kernel_s), str(limit_s)]
        self.process = start("--launcher", "local", *words, cwd=folder)

    def printed(self, rank: int) -> str:
        path = self.path / "workers" / f"rank_{rank:05d}.out"
        return path.read_text() if path.exists() else ""

    def jobs(self, verb: str) -> str:
        jobs = call(sys.executable, CHECKOUT / "launch/jobs.py", verb, self.path.name,
                    cwd=self.folder)  # fmt: skip
        return jobs.stdout + jobs.stderr

    def end(self) -> tuple[int, str]:
        """The exit code, and what it has printed of its end."""
        _, err = self.process.communicate(timeout=300)
        return self.process.returncode, err


@pytest.fixture
def start_run(tmp_path):
    """Starts a run, which has ended after the test."""
    runs = []

    def start_run(*words, **named):
        runs.append(Run(tmp_path, *words, **named))
        return runs[-1]

    yield start_run
    for one in runs:
        if one.process.poll() is None:
            one.jobs("cancel")
            one.process.kill()
            one.process.wait()


def test_killed_rank_is_named_and_the_other_ends(start_run):
    code, err = start_run("killed").end()
    assert code == 137 and "rank 1 on node0 was killed by SIGKILL" in cause_in(err), err


def test_rank_waiting_in_cpu_is_named_after_peer_times_out(start_run, record_property):
    late = start_run("late", limit_s=LATE_S)
    wait_until(lambda: "waits" in late.printed(1) or late.process.poll() is not None)
    began_s = time.monotonic()
    code, err = late.end()
    record_property("seconds from the wait to the end of the run", time.monotonic() - began_s)
    assert code == 1 and "rank 1" in cause_in(err), err
    assert "goes on" not in late.printed(1), "it was not ended, but has ended by itself"


def test_stacks_show_a_rank_in_cpu_and_cancel_ends_it(start_run):
    held = start_run("held")
    wait_until(lambda: "waits" in held.printed(1) or held.process.poll() is not None)
    late = "rank 1 on node0 has not reached all_reduce"
    wait_until(lambda: late in held.jobs("stacks"))
    assert "lost.py" in held.jobs("stacks")
    held.jobs("cancel")
    code, err = held.end()
    assert code == 143, err
    assert "goes on" not in held.printed(1), "it was not ended, but has ended by itself"


def test_worker_that_nccl_aborts_has_lost_a_peer(start_run):
    """Its collective waits behind a long kernel: to NCCL's watchdog, another rank is late."""
    late = start_run("nccl", workers=1, limit_s=LATE_S)
    code, err = late.end()
    record = json.loads((late.path / "exits" / "rank_00000.json").read_text())
    words = (record["cause"], "Watchdog caught collective operation timeout" in record["message"])
    assert words == ("lost_peer", True), err
    assert code and "killed by" not in cause_in(err), err


def script(text: str, *words: object) -> str:
    """What a Python script prints, which is one rank of NCCL."""
    begin = "import os, sys, torch, torch.distributed as dist\n"
    begin += "torch.cuda.set_device(0)\n"
    begin += 'dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)\n'
    begin += 'ones = torch.ones(3, device="cuda")\n'
    env = {"PYTHONPATH": str(CHECKOUT)}
    done = call(sys.executable, "-c", begin + text, *words, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_collectives_of_nccl_are_in_a_worker_s_answer():
    out = script("""
from muster.worker import flight_recorder
import json
dist.all_reduce(ones)
torch.cuda.synchronize()
print(json.dumps([flight_recorder.groups(), flight_recorder.collectives()]))
""")
    groups, collectives = json.loads(out.splitlines()[-1])
    seen = [(one["operation"], one["shapes"], one["types"]) for one in collectives]
    assert seen == [("all_reduce", [[3]], ["Float"])], out
    assert groups["0"]["begun"] == collectives[0]["number"] and groups["0"]["ranks"] == [0]


def test_rank_that_fails_does_not_wait_for_its_kernels():
    out = script(
        """
from train.distributed import rendezvous
dist.all_reduce(ones)
torch.cuda.synchronize()
for _ in range(int(sys.argv[1])):
    torch.cuda._sleep(2_000_000_000)
over = torch.cuda.Event()
over.record()
dist.all_reduce(ones)
rendezvous._close_at_once(())
print("over" if over.query() else "closed", flush=True)
os._exit(0)
""",
        KERNEL_S,
    )
    assert out.splitlines()[-1] == "closed"
