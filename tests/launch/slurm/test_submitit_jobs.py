"""submitit submits jobs; in jobs of earlier versions, the leader then replaces it."""

import os
import signal
import sys

import pytest

from launch.slurm import submitit_jobs
from muster.checkout import CHECKOUT
from muster.errors import MusterError
from tests.commands import call
from tests.written import executable, write

# Does what submitit does in a job before it calls the function, with another checkout.
IN_A_JOB = """import pathlib, signal, sys
import muster.command
from launch.slurm.submitit_jobs import lead
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda *_: None)
muster.command.CHECKOUT = pathlib.Path(sys.argv[2])
lead(sys.argv[1])
"""
# Takes the leader's place, and prints how it would handle signals at its start.
SHOWS = """import signal, sys
names = ("SIGUSR1", "SIGUSR2", "SIGTERM")
print(sys.argv[1:], *(signal.getsignal(getattr(signal, name)).name for name in names))
"""


def test_leader_replaces_submitit_and_ignores_early_end_notices(tmp_path):
    write(tmp_path, {"muster/run_module.py": SHOWS})
    done = call(sys.executable, "-c", IN_A_JOB, "/logs/a run", tmp_path, cwd=CHECKOUT)
    words = ["launch.leading.batch_job", "run", "/logs/a run"]
    assert done.stdout == f"{words} SIG_IGN SIG_IGN SIG_DFL\n", done.stderr


def test_a_job_s_number_is_found_among_what_else_sbatch_prints():
    banner = "Welcome. Your last job 7 used 3 h.\n\nNews: job 8 of yours waits."
    for before in ("\n", ""):  # or without a last newline
        printed = f"{banner}{before}Submitted batch job 12 on cluster c\nBye\n"
        assert submitit_jobs.job_number(printed) == "12"
    with pytest.raises(MusterError, match=r"no job number, but: Welcome; .*squeue"):
        submitit_jobs.job_number("Welcome\n")


def test_an_sbatch_that_does_not_return_is_ended(slurm, tmp_path, monkeypatch):
    waits = f"#!/bin/sh\necho $$ > '{tmp_path}/pid'\nexec sleep 10000\n"
    executable(tmp_path / "slurm" / "bin" / "sbatch", waits)
    monkeypatch.setattr(submitit_jobs, "SLURM_IS_SILENT_S", 3.0)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(MusterError, match=r"sbatch .* 3 s"):
        submitit_jobs.submit(tmp_path / "submitit", "#!/bin/sh\n", os.environ)
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
