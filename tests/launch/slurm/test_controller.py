"""What Slurm is asked, how often, and how its answers are read."""

import os
from datetime import datetime
from types import SimpleNamespace

import pytest

from launch.slurm import controller
from launch.slurm.controller import FORGOTTEN, UNKNOWN, JobState
from launch.slurm.run_watcher import JobStates

DOWN = "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions"
MORE = ("1", "/home/me/a|b/run/submitit/%j_0_log.out")  # restarts and output
# The answer of squeue, which is byte for byte the same in 22.05.8 and 24.11.5.
QUEUE = (
    f"2|2|PENDING|N/A|N/A|{DOWN}",
    "3|3|PENDING|2026-11-22T17:28:36|N/A|BeginTime",
    "1|1|RUNNING|2026-11-22T16:28:36|2026-11-22T17:28:36|None",
    "9|7_3|RUNNING|2026-11-22T16:28:36|UNLIMITED|None",
)


@pytest.fixture
def queue(slurm):
    slurm.prints_to(MORE[1], restarts=1)
    slurm.queue_is(*QUEUE)
    return slurm


def test_sbatch_variables_of_the_user_count_behind_flags():
    own = {"SBATCH_ACCOUNT": "me", "SBATCH_PARTITION": "x", "SLURM_CLUSTERS": "c", "SLURM_JWT": "j"}
    assert controller.scrubbed({**own, "SBATCH_OUTPUT": "o", "SBATCH_WAIT": "1"}) == own
    env = {**own, "SBATCH_TIMELIMIT": "5", "SBATCH_MEM_PER_NODE": "1G", "TIME": "now"}
    env |= {"SLURM_JOB_ID": "1", "SBATCH_MEM_BIND": "x", "PMIX_RANK": "0"}
    env |= {"SLURM_TIME_FORMAT": "relative"}  # squeue's
    del own["SBATCH_PARTITION"]
    assert controller.scrubbed(env, ["time", "mem", "partition"]) == {**own, "TIME": "now"}


def test_squeue_is_asked_once_for_all_jobs(queue):
    found = controller.job_states(["1", "2", "3", "7_3", "9", "99"], os.environ)
    of_array = JobState("RUNNING", "", "2026-11-22T16:28:36", "UNLIMITED", *MORE)
    assert found == {
        "1": JobState("RUNNING", "", "2026-11-22T16:28:36", "2026-11-22T17:28:36", *MORE),
        "2": JobState("PENDING", DOWN.replace(" ", "_"), "N/A", "N/A", *MORE),
        "3": JobState("PENDING", "BeginTime", "2026-11-22T17:28:36", "N/A", *MORE),
        "7_3": of_array,
        "9": of_array,  # the number inside the job
        "99": JobState(FORGOTTEN),
    }


BANNER = "*** Welcome. Your last job 7 | used 3 h ***\n\nNews: job 8 of yours waits."


def test_banner_of_a_site_is_no_part_of_slurms_answer(queue):
    queue.greets(BANNER)
    assert controller.job_states(["1", "99"], os.environ)["1"].name == "RUNNING"
    assert controller.job_state("99", os.environ).name == FORGOTTEN
    assert controller.name(os.environ) == "here"
    assert controller.host_names("node0,node1", os.environ) == ["node0", "node1"]


def test_job_end_time_is_known_only_where_slurm_answers(queue):
    assert controller.end_unix_s("1", os.environ) == datetime(2026, 11, 22, 17, 28, 36).timestamp()
    assert controller.end_unix_s("9", os.environ) is None
    queue.silence()
    assert controller.end_unix_s("1", os.environ) is None


def test_slurm_is_asked_for_all_jobs_together_and_seldom(queue, monkeypatch):
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("launch.slurm.run_watcher.time", clock)
    jobs = JobStates(os.environ)
    for tick in range(300):  # half a minute of looking, ten times a second
        now[0] = tick / 10
        jobs.look_at(["1", "2", "99"])
        states = [jobs.state(number).name for number in ("1", "2", "99")]
        assert states == ["RUNNING", "PENDING", FORGOTTEN]
    assert len(queue.calls("squeue")) == 6 and queue.calls("scontrol") == []
    assert "--jobs=1,2 " in queue.calls("squeue")[-1]  # one that is over is not asked about again
    queue.queue_is(QUEUE[1].replace("3|3", "2|2"))
    jobs.state("2", change_stamp="exit.json")  # its files have changed, so its state may have
    now[0] += 1.0
    assert jobs.state("2", change_stamp="exit.json").reason == "BeginTime"


def test_while_slurm_is_silent_nothing_is_known(queue):
    jobs = JobStates(os.environ)
    queue.silence()
    jobs.look_at(["1", "2"])
    assert jobs.state("1").name == jobs.state("2").name == UNKNOWN
    assert len(queue.calls("squeue")) == 1


NODES = ("main* 64 gpu:a100:4(S:0-1)", "main* 128 gpu:4", "main* 8 (null)", "big 96 gpu:h100:8")


@pytest.mark.parametrize(
    ("wanted", "cores"), [("", 16), ("big", 12), ("main,big", 12), ("elsewhere", None)]
)
def test_cores_per_gpu_are_least_among_nodes_of_partition(slurm, wanted, cores):
    slurm.has_gpus(*NODES, main="JobDefaults=(null)", big="JobDefaults=(null)")
    assert controller.cores_per_gpu(wanted, os.environ) == cores


def test_a_cluster_that_gives_cores_with_gpus_knows_best(slurm):
    slurm.has_gpus(*NODES, main="JobDefaults=DefCpuPerGPU=3", big="JobDefaults=(null)")
    for partition, cores in (("", None), ("big", 12)):
        assert controller.cores_per_gpu(partition, os.environ) == cores
    slurm.silence()
    assert controller.cores_per_gpu("big", os.environ) is None
