"""Ordinary runs are never reported as hung: evaluations, checkpoints, and pools that compute.

SOAK_MINUTES sets how long each lasts, above a minimum; `make soak` sets an hour.
"""

import os
import signal
import time

import pytest

from tests.commands import begin, call, finish
from tests.environments import paced_python
from tests.fork_server import interpreter
from tests.launch.submit import SUBMIT, wait_until

pytestmark = pytest.mark.slow

SECONDS = 60 * float(os.environ.get("SOAK_MINUTES", "0.2"))
PROGRAM = """
import sys
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(16, 16)
def evaluate(seconds):
    end, loss, right = time.monotonic() + seconds, 0.0, 0
    with torch.no_grad():
        while time.monotonic() < end:  # as one has it: more steps than a small endless loop
            inputs = torch.rand(256, 16)
            targets = inputs.argsort(dim=1)
            outputs = model(inputs).log_softmax(dim=1)
            loss += outputs.gather(1, targets[:, :1]).mean().item()
            order = outputs.argsort(dim=1)
            right += (order == targets).sum().item()
            spread = outputs.exp().sort(dim=1).values
            loss += spread.cumsum(dim=1).std().item()
def save(seconds):
    end = time.monotonic() + seconds
    with open(sys.argv[1], "wb") as file:
        while time.monotonic() < end:
            file.seek(0)
            file.write(bytes(1000))
            time.sleep(0.3)
end, goes_on = time.monotonic() + float(sys.argv[2]), torch.ones(1)
while goes_on:
    dist.all_reduce(torch.ones(10))
    if dist.get_rank() == 0:
        evaluate(26)
    dist.barrier()
    if dist.get_rank() == 1:
        save(26)
    goes_on.fill_(time.monotonic() < end)  # as rank 0 says
    dist.broadcast(goes_on, 0)
"""


def test_ranks_that_wait_for_an_evaluation_or_a_save(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [interpreter(), SUBMIT, "--launcher", "local", "--nodes", "2", "--no-snapshot"]
    words = ["--hang-after-s", "20", "--", "program.py", str(tmp_path / "saved"), str(SECONDS)]
    done = call(*argv, *words, cwd=tmp_path, timeout_s=SECONDS + 600)
    assert done.returncode == 0, done.stderr
    assert "no progress" not in done.stdout + done.stderr


POOL = """
import multiprocessing, sys, time
import torch
import torch.distributed as dist
def tokenize(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(10))
if dist.get_rank() == 0:
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokenize, [float(sys.argv[1])] * 2)
dist.barrier()
"""


def test_ranks_that_wait_for_a_pool_that_computes(tmp_path):
    (tmp_path / "program.py").write_text(POOL)
    argv = [interpreter(), SUBMIT, "--launcher", "local", "--nodes", "2", "--no-snapshot"]
    words = ["--hang-after-s", "12", "--", "program.py", str(max(SECONDS, 18))]
    done = call(*argv, *words, cwd=tmp_path, timeout_s=SECONDS + 600)
    assert done.returncode == 0, done.stderr
    assert "no progress" not in done.stdout + done.stderr


def test_a_training_with_evaluations_and_checkpoints(tmp_path):
    # A busy disk can take seconds to write a checkpoint.
    argv = [paced_python(tmp_path / "env"), SUBMIT, "--launcher", "local", "--nodes", "2"]
    flags = ["--hang-after-s", "20", "--task", "paced", "--epochs", "1000000", "--threads", "1"]
    flags += ["--checkpoint-every", "50", "--logs-dir", str(tmp_path)]
    process = begin(*argv, *flags)
    wait_until(lambda: any(tmp_path.glob("*/checkpoints/step_*")))  # training has begun
    time.sleep(max(SECONDS, 26))
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert "no progress" not in out + err and code in (75, 130), out + err
