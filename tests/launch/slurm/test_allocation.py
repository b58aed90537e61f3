"""What Slurm says is read as it means it, and what it does not have is said before submitting."""

import pytest

from configs.settings.launch import SlurmConfig
from launch.slurm.batch_script import minutes
from launch.slurm.run_job import Allocation
from muster.errors import MusterError, UsageError

JOB = {"SLURM_JOB_ID": "123", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "node[0-1]"}


def test_a_job_and_a_part_of_an_array():
    job = Allocation.from_env(JOB)
    assert (job.name, job.attempt, job.num_nodes, job.gpus_on_node) == ("123", 0, 2, 0)
    part = {**JOB, "SLURM_ARRAY_JOB_ID": "120", "SLURM_ARRAY_TASK_ID": "3"}
    assert Allocation.from_env({**part, "SLURM_RESTART_COUNT": "2"}).name == "120_3"
    with pytest.raises(MusterError, match="not in a Slurm job; submit with: sbatch"):
        Allocation.from_env({})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("30", 30),
        ("1:30", 1.5),
        ("2:00:00", 120),
        ("1-0", 1440),
        ("1-12:30", 2190),
        ("1-00:00:30", 1440.5),
        ("infinite", float("inf")),
    ],
)
def test_times_are_read_as_slurm_reads_them(text, value):
    assert minutes(text) == value


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"time": "0"}, "--time '0' is not a time above 0"),
        ({"time": "soon"}, "--time 'soon' is not a time"),
        ({"partition": "a\nb"}, "--partition 'a\\nb': empty, or with line breaks"),
        ({"account": ""}, "--account '': empty"),
        ({"slurm": "mail-type"}, "use KEY=VALUE"),
        ({"slurm": "$(id)=1"}, "use KEY=VALUE"),
        ({"gpus_per_node": "4", "gres": "gpu:4"}, "both ask for GPUs"),
        ({"cpus_per_task": 0}, "--cpus-per-task must be at least 1"),
    ],
)
def test_each_wrong_setting_is_one_line(setting, message):
    with pytest.raises(UsageError) as caught:
        SlurmConfig(**setting)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_any_other_option_of_sbatch_can_be_given():
    settings = SlurmConfig(slurm="mail-type=END\ncomment=a, b = c")
    assert settings.more == {"mail_type": "END", "comment": "a, b = c"}
