"""The batch script that submit.py makes asks for what the run needs."""

import os
import re
import shlex
import subprocess
import sys
import threading
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import strategies as st

from configs.settings import sbatch_options
from configs.settings.launch import LaunchConfig
from configs.settings.remote import SbatchOption, Settings, SlurmConfig, SshConfig
from launch.launchers.slurm import Slurm, build, job_folder
from launch.programs.python_choice import say_once
from launch.slurm import batch_script
from launch.slurm.batch_script import minutes
from launch.slurm.controller import JobState
from launch.slurm.current_job import CurrentJob
from launch.slurm.run_watcher import is_own
from launch.spec import Facts, LaunchSpec, Program
from muster.errors import UsageError
from tests.commands import call
from tests.configs.made import make_config
from tests.fuzzing import fuzzed
from tests.launch.run_folders import JOB


def options(launch=None, slurm=None) -> dict[str, str]:
    """Return sbatch's options by name, and the job's command as `command`."""
    config = make_config(LaunchConfig, launcher="slurm", **(launch or {}))
    launcher = build(Settings(config, SshConfig(), make_config(SlurmConfig, **(slurm or {}))))
    program = Program.module("train.worker")
    spec = LaunchSpec("run", Path("/logs/run"), program, workers=config.workers)
    lines = launcher.show(spec, launcher.assume()).splitlines()
    given = [line.split("--", 1)[1] for line in lines if line.startswith("#SBATCH --")]
    (command,) = (line for line in lines if " launch.leading.batch_job " in line)
    return {**dict(one.partition("=")[::2] for one in given), "command": command}


CORES = [
    ({"nodes": 2, "nproc_per_node": "4"}, {}, "4"),
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
def test_cpus_per_task_follow_workers_or_gpus_of_node(slurm, launch, asked, cores):
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
def test_batch_job_has_one_task_per_node_and_leader_command(workers):
    found = options({"nodes": 2, "nproc_per_node": "4", "workers": workers})
    assert (found["nodes"], found["ntasks-per-node"]) == ("2", "1")
    assert found["command"].endswith("muster/run_module.py launch.leading.batch_job run /logs/run")


def slurm_launcher() -> Slurm:
    return build(Settings(LaunchConfig(launcher="slurm"), SshConfig(), SlurmConfig()))


def submitted(*run_dirs: Path) -> list[str]:
    """Submit these runs, several as the tasks of one array; return the numbers of their jobs."""
    launcher = slurm_launcher()
    specs = []
    for run_dir in run_dirs:
        run_dir.mkdir(parents=True, exist_ok=True)
        specs.append(LaunchSpec("run", run_dir, Program.module("train.worker")))
    if len(specs) == 1:
        return [launcher.submit(specs[0], launcher.assume()).job_id]
    folder = job_folder(run_dirs[0].parent / "001")
    job_ids, cluster = launcher.submit_array("sweep", specs, launcher.assume(), folder, 1)
    assert cluster == "here"
    return job_ids


@pytest.mark.parametrize(("runs", "job_ids"), [("a", ["12"]), ("ab", ["12_0", "12_1"])])
def test_a_job_s_number_is_found_behind_a_site_s_banner(slurm, tmp_path, runs, job_ids):
    slurm.greets("Welcome! Your last job 7 used 3 h.")
    assert submitted(*(tmp_path / name for name in runs)) == job_ids


def test_array_tasks_lead_own_runs_and_have_own_output_files(slurm, tmp_path):
    runs = [tmp_path / name for name in ("50% a", "b", "c")]
    assert submitted(*runs) == ["12_0", "12_1", "12_2"]
    folder = tmp_path / "001" / "submitit"
    (script,) = folder.glob("*_submission.sh")
    text = script.read_text()
    assert "#SBATCH --array=0-2%1\n" in text and "#SBATCH --job-name=muster-sweep\n" in text
    assert f"#SBATCH --output={folder}/%A_%a_0_log.out\n" in text
    leads = text.replace(f"exec {sys.executable} ", "echo ")
    for index, run_dir in enumerate(runs):
        led = call("bash", "-c", leads, env={"SLURM_ARRAY_TASK_ID": str(index)})
        assert led.stdout.endswith(f" launch.leading.batch_job run {run_dir}\n"), led.stderr
        states = [JobState("", output=f"{at}/%A_%a_0_log.out") for at in (folder, f"{folder}2")]
        assert [is_own(run_dir, JOB, state) for state in states] == [True, False]


def test_dry_run_shows_the_submitted_script(slurm, tmp_path):
    launcher = slurm_launcher()
    spec = LaunchSpec("run", tmp_path / "run", Program.module("train.worker"))
    submitted(spec.run_dir)
    (script,) = tmp_path.rglob("*_submission.sh")
    shown = launcher.show(spec, launcher.assume())
    assert shown.startswith(f"{script.read_text()}\n\n# which runs, on each node:\n")


def test_submission_drops_job_variables_without_changing_own_environment(
    slurm, tmp_path, monkeypatch
):
    for name in ("SLURM_ARRAY_JOB_ID", "SBATCH_OUTPUT", "OF_THE_USER"):
        monkeypatch.setenv(name, "9")
    before = dict(os.environ)
    is_over = threading.Event()
    seen = []

    def look() -> None:
        while not is_over.is_set():
            seen.append(os.environ.get("SBATCH_OUTPUT"))

    watching = threading.Thread(target=look)
    watching.start()
    try:
        submitted(tmp_path / "run")
    finally:
        is_over.set()
        watching.join()
    assert {*seen} == {"9"} and dict(os.environ) == before
    assert slurm.submitted["OF_THE_USER"] == "9"
    assert not {"SLURM_ARRAY_JOB_ID", "SBATCH_OUTPUT"} & slurm.submitted.keys()


FOUR_A_NODE = make_config(LaunchConfig, launcher="slurm", nproc_per_node=4)


@pytest.mark.parametrize(("asked", "refused"), [("2", True), ("a100:4", False), ("8", False)])
def test_more_workers_than_gpus_are_refused(asked, refused):
    slurm = SlurmConfig(gpus_per_node=asked)
    launcher = build(Settings(FOUR_A_NODE, SshConfig(), slurm))
    assert bool(list(launcher.problems())) == refused


def test_more_workers_than_the_gpus_of_a_held_job_are_refused():
    launcher = build(Settings(FOUR_A_NODE, SshConfig(), SlurmConfig()))
    launcher._current = CurrentJob(job_id="12", name="12", num_nodes=2, gpus=2)
    (line,) = launcher.problems()
    assert line.startswith("--nproc-per-node 4, ")


def test_short_job_is_not_warned_at_its_start():
    assert options(slurm={"time": "1"})["signal"] == "B:USR2@15"
    assert options(slurm={"time": "1:00:00"})["signal"] == "B:USR2@90"


def test_times_are_read_as_slurm_reads_them():
    times = {"30": 30, "1:30": 1.5, "2:00:00": 120, "1-0": 1440, "1-12:30": 2190}
    times |= {"1-00:00:30": 1440.5, "infinite": float("inf")}
    assert {text: minutes(text) for text in times} == times


# what Slurm would refuse


UNAVAILABLE = "allocation failure: Requested node configuration is not available"
# `main` has three nodes of two sizes; one of the large ones is down.
SIZES = ("main*|1:00:00|8|16000|idle|(null)", "main*|1:00:00|16|64000|mixed|gpu:a100:2(S:0)")
SIZES += ("main*|1:00:00|16|64000|down*|gpu:a100:2(S:0)", "big|infinite|96|900000|idle|gpu:8")


def problems(launch=None, slurm=None) -> list[str]:
    """Return the lines with which a submission is refused."""
    config = make_config(LaunchConfig, launcher="slurm", **(launch or {}))
    launcher = build(Settings(config, SshConfig(), make_config(SlurmConfig, **(slurm or {}))))
    try:
        launcher.probe()
    except UsageError as error:
        return str(error).splitlines()
    return []


def test_job_for_nodes_that_are_down_is_queued_with_note(slurm, capsys):
    say_once.cache_clear()
    slurm.has_nodes(*SIZES)
    slurm.would_refuse("", UNAVAILABLE)
    assert problems({"nodes": 2}, {"mem": "20G"}) == []
    assert capsys.readouterr().err.startswith("note: 1 node is down ")
    slurm.has_nodes(*SIZES[:2])  # all are up: something else is wrong, such as --exclude
    (line,) = problems({"nodes": 2})
    assert "Requested node configuration" in line


def test_any_other_option_of_sbatch_can_be_given():
    found = options(slurm={"slurm": "mail-type=END\ncomment=a, b = c"})
    assert (found["mail-type"], found["comment"]) == ("END", "'a, b = c'")


def test_switches_of_sbatch_need_no_value():
    assert options(slurm={"slurm": "hold\nexclusive=user"}).keys() >= {"hold", "exclusive"}


def test_what_is_wrong_with_another_option_is_said_by_sbatch_before_the_start(slurm):
    """Its own message is shown; in the script, an option without a value has its own line."""
    slurm.would_refuse("#SBATCH --comment\n", "sbatch: option '--comment' requires an argument")
    (line,) = problems(slurm={"slurm": "comment"})
    assert "option '--comment' requires" in line


@pytest.mark.needs("sbatch")
@pytest.mark.parametrize("option", ["comment", "no-such=1", "contiguous=1"])
def test_sbatch_itself_refuses_a_wrong_option_of_a_script(tmp_path, option):
    config = make_config(SlurmConfig, slurm=option)
    script = batch_script.text(batch_script.user_options(config), "true")
    assert f"option '--{option.partition('=')[0]}" in sbatch_output(script, tmp_path)


def test_sbatch_s_variables_for_refused_options_do_not_reach_it(monkeypatch):
    given = {"SBATCH_ARRAY_INX": "0-1", "SBATCH_OUTPUT": "x", "SBATCH_GPUS": "4"}
    for name, value in {**given, "SBATCH_ACCOUNT": "me", "SBATCH_MEM_PER_CPU": "1G"}.items():
        monkeypatch.setenv(name, value)
    env = batch_script.environment(SlurmConfig(mem="2G"))
    assert {name for name in env if name.startswith("SBATCH_")} == {"SBATCH_ACCOUNT"}
    notes = list(batch_script.notes({**given, "SBATCH_ACCOUNT": "me"}))
    assert [line.partition(":")[2].partition(" is")[0].strip() for line in notes] == [
        *sorted(given)
    ]


def test_gpus_and_times_in_sbatch_s_variables_count(slurm, monkeypatch):
    slurm.has_gpus("main* 64 gpu:4", main="")
    monkeypatch.setenv("SBATCH_GRES", "gpu:a100:2")
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    asked = options({"nproc_per_node": "gpu"})
    assert (asked["cpus-per-task"], asked["signal"]) == ("32", "B:USR2@15")
    monkeypatch.delenv("SBATCH_GRES")
    monkeypatch.setenv("SBATCH_GPUS_PER_NODE", "2")
    asked = options({"nproc_per_node": "gpu"}, {"gres": "tmp:1G"})
    assert asked["cpus-per-task"] == "32"


def test_banner_of_sinfo_is_no_partition(slurm):
    slurm.greets("*** Welcome ***\n\nMaintenance tomorrow.\nBye\n")
    slurm.has_gpus("main* 64 gpu:4", main="")
    assert options({"nproc_per_node": "gpu"}, {"gres": "gpu:2"})["cpus-per-task"] == "32"
    config, facts = SlurmConfig(time="10"), Facts((), "node0")
    batch_script.refuse_what_slurm_refuses(config, os.environ, facts)


def sbatch_output(script: str, folder: Path) -> str:
    """Return what the installed sbatch prints about a batch script."""
    (folder / "slurm.conf").write_text(CONFIG)
    (folder / "job.sh").write_text(script)
    env = {"PATH": os.environ["PATH"], "SLURM_CONF": str(folder / "slurm.conf")}
    words = ["sbatch", "-v", "--test-only", "job.sh"]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return done.stderr


def parsed(script: str, folder: Path) -> dict[str, str]:
    """Return the options in a batch script as the installed sbatch reads them."""
    return dict(
        re.findall(r"^sbatch: ([\w-]+) +: (.*)$", sbatch_output(script, folder), re.MULTILINE)
    )


CONFIG = """\
ClusterName=none
SlurmctldHost=localhost
MessageTimeout=1
NodeName=localhost
PartitionName=all Nodes=localhost Default=YES
"""


@pytest.mark.needs("sbatch")
def test_sbatch_reads_values_in_a_script_as_they_are(tmp_path):
    values = {"comment": r"""it's "a" \ b # c %j""", "output": "/a b/100%%/%j.out"}
    assert parsed(batch_script.text(values, "true"), tmp_path).items() >= values.items()


def test_percent_signs_of_a_path_are_no_patterns_of_sbatch():
    assert batch_script.file_name(Path("/100%a/%j"), "%a.out") == "/100%%a/%%j/%a.out"


@pytest.mark.parametrize("path", ["/a\\b", "/a\nb"])
def test_a_path_that_sbatch_reads_in_another_way_is_refused(path):
    with pytest.raises(UsageError, match="choose another --logs-dir"):
        batch_script.file_name(Path(path), "%a.out")


@pytest.mark.parametrize("name", ["100%", "50%done", "%%"])
def test_a_run_in_a_folder_with_percent_signs_is_one_job(slurm, tmp_path, name):
    run_dir = tmp_path / name / "run"
    run_dir.mkdir(parents=True)
    assert submitted(run_dir) == ["12"]
    (script,) = (run_dir / "submitit").glob("12_submission.sh")
    escaped = str(run_dir).replace("%", "%%")
    output = shlex.quote(f"{escaped}/submitit/%j_0_log.out")
    assert f"#SBATCH --output={output}\n" in script.read_text()


@pytest.mark.parametrize(
    ("runs", "pattern"), [(["50%test/run"], "%t"), (["100%a/run", "100%a/other"], "%a")]
)
def test_run_folder_with_submitit_pattern_is_refused(slurm, tmp_path, runs, pattern):
    with pytest.raises(UsageError, match=f"submitit replaces {pattern}"):
        submitted(*(tmp_path / name for name in runs))


KEYS = st.sampled_from([*sbatch_options.REFUSED, "mem", "hold", "mail-type"]) | st.text(max_size=12)
TEXTS = st.tuples(KEYS, st.sampled_from(["=", "", " ", "=="]), st.text(max_size=12)).map("".join)


@fuzzed(TEXTS | st.text())
def test_random_slurm_text_is_refused_or_one_sbatch_option(text):
    """sbatch gets the option as one word, whatever the text contains."""
    try:
        config = SlurmConfig(slurm=tuple(map(SbatchOption.parse, text.split("\n"))))
    except UsageError as error:
        assert all(line.startswith("--slurm ") for line in str(error).split("\n"))
        return
    with_flag = {item.name for item in fields(config)} - {"slurm"}
    for name, value in batch_script.user_options(config).items():
        assert name.replace("_", "-") not in sbatch_options.REFUSED and name not in with_flag
        (line,) = batch_script.text({name: value}, "true").split("\n")[1:2]
        words = shlex.split(line)
        equals = "" if value is True else "="
        assert words[:1] == ["#SBATCH"] and len(words) == 2
        assert words[1].partition("=")[:2] == (f"--{name.replace('_', '-')}", equals)
