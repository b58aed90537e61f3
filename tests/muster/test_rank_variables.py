"""torchrun's variables, derived from those of any launcher."""

import pytest

from muster.errors import UsageError
from muster.rank_variables import RANK_VARIABLES, torchrun_variables

NAMES = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"]
TORCHRUN = dict(zip(NAMES, "542221", strict=True)) | {"MASTER_ADDR": "a", "MASTER_PORT": "7"}
BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1"}
STEP_OF_NINE = {
    "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_PROCID": "7", "SLURM_NODEID": "2",
    "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "9", "SLURM_STEP_TASKS_PER_NODE": "3(x2),2,1",
    "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NODELIST": "node[0-3]",
}  # fmt: skip
SRUN = {**STEP_OF_NINE, "MASTER_ADDR": "node0"}
SRUN_ADDRESS = f"node0:{20000 + 17 * 7 + 2}"
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}  # fmt: skip
# mpirun inside a job: its daemons are the tasks of a step.
DAEMON = {
    **SRUN, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"
}  # fmt: skip
MPI_IN_JOB = {**DAEMON, **MPIRUN, "OMPI_COMM_WORLD_SIZE": "4"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("env", "ranks", "address"),
    [
        (TORCHRUN, "542221", "a:7"),
        ({**MPI_IN_JOB, "PMI_SIZE": "9", **TORCHRUN}, "542221", "a:7"),  # wherever torchrun ran
        (BY_HAND, "340134", "10.0.0.1:29500"),
        ({**BY_HAND, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "341212", "10.0.0.1:29500"),
        (SRUN, "791224", SRUN_ADDRESS),
        ({**SRUN, "PMI_RANK": "7", "PMI_SIZE": "9"}, "791224", SRUN_ADDRESS),  # PMI of srun
        (MPIRUN, "121201", "127.0.0.1:29500"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_ADDR": "a"}, "120112", "a:29500"),
        (MPI_IN_JOB, "141202", "node0:29500"),
        ({**DAEMON, **MPICH}, "141202", "node0:29500"),
    ],
)
def test_ranks_and_where_they_meet(env, ranks, address):
    found = torchrun_variables(env)
    assert "".join(found[name] for name in NAMES) == ranks
    assert f"{found['MASTER_ADDR']}:{found['MASTER_PORT']}" == address


# Slurm's variables for a shell of salloc, a batch script, and a step of one task.
SHELL = {"SLURM_JOB_ID": "4", "SLURM_NTASKS": "4", "SLURM_NNODES": "2", "SLURM_NPROCS": "4"}
BATCH = {**SHELL, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
STEP = {**BATCH, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_NUM_NODES": "1"}


@pytest.mark.parametrize(
    "env",
    [{}, SHELL, BATCH, STEP, {**STEP, "PMIX_RANK": "0"}]
    + [{**MPI_IN_JOB, "OMPI_COMM_WORLD_SIZE": "1"}],
)
def test_a_process_alone(env):
    assert torchrun_variables(env) == {}


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"WORLD_SIZE": "4"}, "RANK is not set and WORLD_SIZE is 4"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "the address of rank 0 is not set"),
        ({**SRUN, "SLURM_NODEID": ""}, "do not show which of them this is"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "mpirun -x MASTER_ADDR"),
        (STEP_OF_NINE, "set MASTER_ADDR"),  # there is no scontrol
        *(({name: "0"}, f"{name}=0 makes this process one of several") for name in RANK_VARIABLES),
    ],
)
def test_missing_rank_variable_is_asked_for(monkeypatch, env, problem):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match=problem):
        torchrun_variables(env)
