"""The batch script that submit.py makes asks for what the run needs."""

from pathlib import Path

import pytest

from configs.settings.launch import LaunchConfig, Nodes, Settings, SlurmConfig, SshConfig
from launch.launchers.slurm import build
from launch.slurm.batch_script import minutes
from launch.slurm.current_job import CurrentJob
from launch.spec import LaunchSpec, Program
from muster.errors import UsageError


def options(launch=None, slurm=None) -> dict[str, str]:
    """sbatch's options by name, and the job's command under `command`."""
    config = LaunchConfig(launcher="slurm", **(launch or {}))
    launcher = build(Settings(config, SshConfig(), SlurmConfig(**(slurm or {}))))
    program = Program.module("train.worker")
    spec = LaunchSpec("run", Path("/logs/run"), program, workers=config.workers)
    lines = launcher.show(spec, launcher.assume()).splitlines()
    given = [line.split("--", 1)[1] for line in lines if line.startswith("#SBATCH --")]
    (command,) = (line for line in lines if " launch.leading.batch_job " in line)
    return {**dict(one.partition("=")[::2] for one in given), "command": command}


CORES = [
    ({"nodes": Nodes(2), "nproc_per_node": "4"}, {}, "4"),
    ({"nproc_per_node": "2,3"}, {}, "3"),
    ({"nproc_per_node": "4"}, {"cpus_per_task": 8}, "8"),
    ({"nproc_per_node": "4"}, {"slurm": "cpus-per-gpu=8"}, None),
    ({"nproc_per_node": "gpu"}, {"gpus_per_node": "4"}, "64"),
    ({}, {"gpus_per_node": "a100:2", "partition": "big"}, "24"),
    ({}, {"gres": "gpu:2,tmp:1G"}, "32"),
    ({}, {"gpus_per_node": "4", "cpus_per_task": 8}, "8"),
    ({}, {"gpus_per_node": "4", "slurm": "cpus-per-gpu=2"}, None),
    ({}, {"gpus_per_node": "4", "partition": "own"}, None),
    ({"nproc_per_node": "4", "workers": "manual"}, {}, "4"),
]


@pytest.mark.parametrize(("launch", "asked", "cores"), CORES)
def test_a_node_has_a_core_for_each_worker_or_what_goes_with_its_gpus(slurm, launch, asked, cores):
    slurm.has_gpus(
        "main* 64 gpu:4", "big 96 gpu:8", "own 64 gpu:4",
        main="JobDefaults=(null)", big="", own="JobDefaults=DefCpuPerGPU=2",
    )  # fmt: skip
    assert options(launch, asked).get("cpus-per-task") == cores


def test_without_slurm_a_dry_run_asks_for_gpus_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    found = options(slurm={"gpus_per_node": "4"})
    assert found["gpus-per-node"] == "4" and "cpus-per-task" not in found


@pytest.mark.parametrize("workers", ["torchrun", "manual"])
def test_a_node_has_one_task_and_the_leader_is_the_jobs_command(workers):
    found = options({"nodes": Nodes(2), "nproc_per_node": "4", "workers": workers})
    assert (found["nodes"], found["ntasks-per-node"]) == ("2", "1")
    assert found["command"].endswith("muster/run_module.py launch.leading.batch_job run /logs/run")


def test_the_number_of_an_array_is_found_behind_a_site_s_banner(slurm, tmp_path):
    slurm.greets("Welcome to the cluster")
    settings = LaunchConfig(launcher="slurm")
    launcher = build(Settings(settings, SshConfig(), SlurmConfig()))
    (tmp_path / "run").mkdir()
    (folder := tmp_path / "sweep" / "submissions" / "001").mkdir(parents=True)
    spec = LaunchSpec("run", tmp_path / "run", Program.module("train.worker"))
    submitted = launcher.submit_array({0: spec}, launcher.assume(), folder, 1)
    assert submitted == ("12", "here")


def test_more_workers_than_gpus_are_refused():
    config = LaunchConfig(launcher="slurm", nproc_per_node="4")
    for asked, refused in (("2", True), ("a100:4", False), ("8", False)):
        slurm = SlurmConfig(gpus_per_node=asked)
        launcher = build(Settings(config, SshConfig(), slurm))
        assert bool(list(launcher.problems())) == refused
    launcher = build(Settings(config, SshConfig(), SlurmConfig()))
    launcher._current = CurrentJob(job_id="12", name="12", num_nodes=2, gpus=2)
    (line,) = launcher.problems()
    assert "--nproc-per-node 4, but each node has 2 GPUs" in line


def test_a_short_job_is_not_told_of_its_end_as_it_starts():
    assert options(slurm={"time": "1"})["signal"] == "B:USR2@15"
    assert options(slurm={"time": "1:00:00"})["signal"] == "B:USR2@90"


def test_times_are_read_as_slurm_reads_them():
    times = {"30": 30, "1:30": 1.5, "2:00:00": 120, "1-0": 1440, "1-12:30": 2190}
    times |= {"1-00:00:30": 1440.5, "infinite": float("inf")}
    assert {text: minutes(text) for text in times} == times


WRONG = [
    ({"time": "0"}, "--time '0' is not a time above 0"),
    ({"time": "soon"}, "--time 'soon' is not a time"),
    ({"partition": "a\nb"}, "--partition 'a\\nb': empty, or with line breaks"),
    ({"account": ""}, "--account '': empty"),
    ({"slurm": "mail-type"}, "use KEY=VALUE"),
    ({"slurm": "$(id)=1"}, "use KEY=VALUE"),
    ({"gpus_per_node": "4", "gres": "gpu:4"}, "both ask for GPUs"),
    ({"cpus_per_task": 0}, "--cpus-per-task must be at least 1"),
]


@pytest.mark.parametrize(("setting", "message"), WRONG)
def test_each_wrong_setting_is_one_line(setting, message):
    with pytest.raises(UsageError) as caught:
        SlurmConfig(**setting)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_any_other_option_of_sbatch_can_be_given():
    found = options(slurm={"slurm": "mail-type=END\ncomment=a, b = c"})
    assert (found["mail-type"], found["comment"]) == ("END", "'a, b = c'")
