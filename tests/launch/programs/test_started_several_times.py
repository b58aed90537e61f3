"""If srun or mpirun starts a command several times, each of its processes refuses to run."""

import os
import sys

import pytest

from launch.launchers.base import launcher_of
from launch.leading import batch_job
from launch.programs.command_line import CommandLine
from launch.programs.other_launchers import refuse_several
from launch.ssh.login_node import __main__ as login_node
from muster.errors import UsageError
from tests.commands import call
from tests.launch.submit import SUBMIT
from tests.written import executable

JOB = {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_PROCID": "0"}
TASK = {**JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
ALONE = {
    "a shell of salloc, or a batch script": JOB,
    "srun --pty bash": {**TASK, "SLURM_STEP_NUM_TASKS": "1"},
    "srun --nodes=2 --pty bash": {**TASK, "SLURM_PTY_PORT": "40000"},
    "the program of a run": {**TASK, "MUSTER_RUN_DIR": "/logs/run"},
    "outside any job": {"SLURM_STEP_NUM_TASKS": "4"},
    "left over from mpirun": {"OMPI_COMM_WORLD_SIZE": "2", "PMI_SIZE": "2"},
}
REFUSED = (
    "srun has started this command 4 times (SLURM_STEP_NUM_TASKS), and each would start the whole "
    "run; leave out srun: Muster starts the workers on all nodes; to start one run in each "
    "task: env -u "
    "SLURM_STEP_NUM_TASKS ..."
)


@pytest.mark.parametrize("env", ALONE.values(), ids=ALONE)
def test_a_command_that_is_alone_is_not_refused(env):
    refuse_several(env)


@pytest.mark.parametrize("more", [{}, {"SLURM_PROCID": "3"}, {"PMI_SIZE": "4"}])
def test_each_task_of_a_step_is_refused(more):
    with pytest.raises(UsageError) as caught:
        refuse_several({**TASK, **more})
    assert str(caught.value) == REFUSED
    with pytest.raises(UsageError):  # a task of a terminal's step whose output nobody sees
        refuse_several({**TASK, "SLURM_PTY_PORT": "40000", "SLURM_PROCID": "1"})


def in_task(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["command", *words])
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)


STARTS = {
    "muster run": (lambda: launcher_of(CommandLine.parse(["--launcher", "local"])), []),
    "srun slurm/multinode.sh": (batch_job.main, ["new"]),
    "muster run --login": (login_node.main, ["run", "--login", "me@none.invalid", "--", "ls"]),
}


@pytest.mark.parametrize(("start", "words"), STARTS.values(), ids=STARTS)
def test_every_command_that_starts_runs_is_refused_in_a_task(monkeypatch, start, words):
    in_task(monkeypatch, *words)
    with pytest.raises(UsageError, match="leave out srun"):
        start()


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE"])
def test_each_rank_of_mpirun_is_refused(tmp_path, variable):
    mpirun = executable(tmp_path / "mpirun", f'#!/bin/sh\nexport {variable}=2\n"$@"\nexit $?\n')
    words = ["--launcher", "local", "--nodes", "2", "--dry-run", "--", "ls"]
    done = call(mpirun, sys.executable, SUBMIT, *words, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 2, done.stderr
    line = f"error: mpirun has started this command 2 times ({variable}), and each would start"
    assert done.stderr.startswith(line)
