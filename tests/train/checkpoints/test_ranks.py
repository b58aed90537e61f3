"""Resuming on several ranks: bitwise in every mode, and on another number of ranks to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = str(Path(__file__).with_name("resume_worker.py"))


@pytest.mark.timeout(600)
def test_every_mode_goes_on_and_another_number_of_ranks_does_too(tmp_path):
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    for ranks in (3, 2):
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command = [*torchrun, f"--nproc-per-node={ranks}", WORKER, str(tmp_path)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr[-3000:]
