"""A run inside an existing job uses that job's nodes; any request beyond the job is refused."""

import os
from dataclasses import replace

import pytest

from configs.settings.launch import LaunchConfig
from configs.settings.remote import SlurmConfig
from launch.slurm.current_job import CurrentJob, current_job, srun_environment
from muster.errors import MusterError
from muster.rank_variables import torchrun_variables
from muster.terminal import TIP
from tests.configs.made import make_config
from tests.launch.pretended import assignment

HERE = CurrentJob(job_id="12", name="12", num_nodes=4)
INSTEAD = "to queue a job instead: env -u SLURM_JOB_ID muster run ..."
TOO_MANY = f"--nodes 5, but this is inside job 12, which has 4{TIP}use fewer nodes; {INSTEAD}"
NEW = "no effect: this is inside job 12, which has its own"
OF_SBATCH = f"--partition, --time, --slurm have {NEW}{TIP}{INSTEAD}"


def job_from_environment() -> CurrentJob | None:
    return current_job({**os.environ, "SLURM_JOB_ID": "12"})


def test_a_part_of_an_array_is_known_by_its_place():
    job = {"SLURM_JOB_ID": "123", "SLURM_JOB_NUM_NODES": "2", "SLURM_RESTART_COUNT": "2"}
    own = CurrentJob.from_env(job)
    assert (own.name, own.attempt, own.num_nodes, own.gpus) == ("123", 2, 2, 0)
    part = {**job, "SLURM_ARRAY_JOB_ID": "120", "SLURM_ARRAY_TASK_ID": "3"}
    assert CurrentJob.from_env(part).name == "120_3"


# As two versions of `scontrol show job --details --oneliner` print them.
NODES = "NodeList=a,b BatchHost=a NumNodes=2 Nodes=a,b CPU_IDs=0-7 Mem=0 GRES="
GPUS = "NodeList=a,b Nodes=a CPU_IDs=0-7 GRES=gpu:a100:4(IDX:0-3) Nodes=b GRES=gpu:2(IDX:0-1)"


@pytest.mark.parametrize(("more", "gpus"), [(NODES, 0), (GPUS, 2)])
def test_running_job_has_nodes_and_gpus_per_node(slurm, more, gpus):
    slurm.job_is("RUNNING", more=more)
    job = job_from_environment()
    assert (job.nodes, job.num_nodes, job.gpus) == (["a", "b"], 2, gpus)


@pytest.mark.parametrize("state", ["COMPLETED", "TIMEOUT", "CANCELLED"])
def test_a_job_that_is_over_is_no_job_to_be_in(slurm, capsys, state):
    slurm.job_is(state, more=NODES)
    assert job_from_environment() is None
    assert capsys.readouterr().err.startswith("note: job 12, ")
    assert current_job({"PATH": os.environ["PATH"]}) is None
    assert len(slurm.calls("squeue")) == 1


def test_pending_or_unknown_current_job_is_refused(slurm):
    slurm.job_is("PENDING", reason="Priority", more="NodeList=(null)")
    with pytest.raises(MusterError, match="no nodes: pending Priority"):
        job_from_environment()
    slurm.silence()
    with pytest.raises(MusterError, match="no nodes: unknown Slurm "):
        job_from_environment()


ASKED = [
    ({"nodes": 4}, {"wait": True}, []),
    ({"nproc_per_node": "2,1"}, {}, []),
    ({"nodes": 5}, {}, [TOO_MANY]),
    ({}, {"partition": "gpu", "time": "30", "slurm": "mail-type=END"}, [OF_SBATCH]),
]


@pytest.mark.parametrize(("launch", "slurm", "problems"), ASKED)
def test_request_beyond_the_held_job_is_refused(launch, slurm, problems):
    assert (
        list(HERE.refused(make_config(LaunchConfig, **launch), make_config(SlurmConfig, **slurm)))
        == problems
    )


UNUSED_TASK = (
    "note: job 12 has 2 tasks per node, but each node gets 1 worker; for one worker per task, add "
    "--nproc-per-node 2"
)
TASKS = [
    ({"SLURM_NTASKS_PER_NODE": "2"}, {}, [UNUSED_TASK]),
    ({"SLURM_NTASKS_PER_NODE": "2"}, {"nproc_per_node": "1"}, []),
    ({"SLURM_NTASKS_PER_NODE": "2", "SLURM_GPUS_ON_NODE": "2"}, {}, []),
    ({"SLURM_NTASKS_PER_NODE": "1"}, {}, []),
    ({}, {}, []),
]


@pytest.mark.parametrize(("env", "launch", "notes"), TASKS)
def test_tasks_per_node_that_get_no_worker_are_noted(env, launch, notes):
    job = CurrentJob.from_env({"SLURM_JOB_ID": "12", **env})
    assert list(job.notes(make_config(LaunchConfig, **launch))) == notes


def test_variables_of_a_step_do_not_reach_the_next():
    step = {"SLURM_MEM_PER_NODE": "100", "SLURM_CPUS_PER_TASK": "8", "SLURM_NTASKS": "1"}
    step |= {"SLURM_STEP_ID": "0", "SLURM_OVERLAP": "0", "SRUN_CPUS_PER_TASK": "8"}
    others = {"SLURM_JOB_ID": "12", "SLURM_CONF": "/c", "HOME": "/h"}
    assert srun_environment({**step, **others}) == others


SLURM_TASK = {"SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_CPUS_PER_TASK": "6"}
SLURM_TASK["SLURM_TRES_PER_TASK"] = "cpu=6,gres/gpu:1"


def test_workers_of_a_slurm_node_are_tasks_of_one_step(tmp_path):
    node = replace(assignment(tmp_path), counts=(3, 3, 2, 1), index=2, ranks=(6, 7))
    found = CurrentJob.worker_variables(node, SLURM_TASK)
    for name in ("NTASKS", "NPROCS", "STEP_NUM_TASKS"):
        assert found[f"SLURM_{name}"] == "9"
    for name in ("TASKS_PER_NODE", "STEP_TASKS_PER_NODE"):
        assert found[f"SLURM_{name}"] == "3(x2),2,1"
    of_node = {"GTIDS": "6,7", "NTASKS_PER_NODE": "3", "CPUS_PER_TASK": "3"}
    of_node["TRES_PER_TASK"] = "cpu=3,gres/gpu:1"
    for name, value in of_node.items():
        assert found[f"SLURM_{name}"] == value
    ranks = {"SLURM_PROCID": "7", "SLURM_LOCALID": "1"}  # as worker_main.py sets them
    task = {"SLURM_JOB_ID": "1", "MASTER_ADDR": "node0", **SLURM_TASK, **found, **ranks}
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
    assert [torchrun_variables(task)[name] for name in names] == ["7", "9", "1", "2", "2"]


@pytest.mark.parametrize(
    ("ranks", "step", "cores"),
    [((0,), "0", "6"), ((0, 1), "0", "3"), (tuple(range(8)), "0", "1"), ((0, 1), None, None)],
)
def test_cores_of_a_slurm_step_are_shared_by_its_workers(tmp_path, ranks, step, cores):
    node = replace(assignment(tmp_path), counts=(len(ranks),), ranks=ranks)
    env = {name: text for name, text in SLURM_TASK.items() if step or name != "SLURM_STEP_ID"}
    assert CurrentJob.worker_variables(node, env).get("SLURM_CPUS_PER_TASK") == cores


def test_slurm_variables_are_set_for_its_tasks_alone(tmp_path):
    shell_of_salloc = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4"}
    for env in ({}, shell_of_salloc):
        assert CurrentJob.worker_variables(assignment(tmp_path), env) == {}
