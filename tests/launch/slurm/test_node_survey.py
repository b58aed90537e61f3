"""srun asks for the resources that sbatch would ask for; inside a job, it uses that job."""

import pytest

from configs.settings.remote import SlurmConfig
from launch.slurm import node_survey
from tests.configs.made import make_config


def test_srun_is_asked_as_sbatch_would_be():
    slurm = "licenses=a\nhold\nbegin=now+1hour"
    config = make_config(SlurmConfig, partition="gpu", gpus_per_node=4, slurm=slurm)
    transport = node_survey.transport(4, config, {"PATH": "/bin", "SLURM_CONF": "/c"})
    (argv,) = transport.commands
    assert {"--nodes=4", "--ntasks-per-node=1", "--partition=gpu", "--gpus-per-node=4"} < set(argv)
    assert "--licenses=a" in argv and not any(
        word.startswith(("--hold", "--begin")) for word in argv
    )
    assert transport.env == {"PATH": "/bin", "SLURM_CONF": "/c"} and "--overlap" not in argv


def test_inside_a_job_the_step_is_part_of_it():
    transport = node_survey.transport(2, SlurmConfig(partition="gpu"), {"SLURM_JOB_ID": "7"})
    assert "--overlap" in transport.commands[0] and "--partition=gpu" not in transport.commands[0]
    assert transport.env == {"SLURM_JOB_ID": "7"}


@pytest.mark.parametrize("reply", ["srun: error: Unable to allocate resources: busy\nmore", ""])
def test_why_srun_failed_is_reported_once_for_all_nodes(reply):
    explain = node_survey.transport(2, SlurmConfig(), {}).explain
    assert explain(0, 1, reply) == explain(1, 1, reply)
    assert ("Unable to allocate resources: busy" in explain(0, 1, reply)) == bool(reply)
