"""What the scripts in slurm/ run, with scripts in place of Slurm's commands and Python."""

import shutil
import signal
import subprocess
import sys

import pytest

from muster.checkout import CHECKOUT
from tests.launch.submit import wait_until
from tests.written import executable

# python and srun record their arguments. scontrol answers as Slurm's does, slowly if `slow` exists,
# and names the user's copy of a script.
COMMANDS = {
    "python": """case "$2" in
*grid) echo 18 2 bf16 64 ;;
*other_launchers) echo /active/python ;;
*) echo "$PWD: $*" > leader ;;
esac""",
    "srun": 'echo "$PWD: $*" > step',
    "scontrol": f"""touch asked; [ ! -e slow ] || sleep 2
case "$2" in
job) echo "   Command={CHECKOUT}/slurm/my-multinode2.sh --sync ddp" ;;
hostnames) echo node0; echo node1 ;;
esac""",
}
LEADING = ["multinode.sh", "singlenode.sh", "accelerate.sh", "sweep.sh"]


@pytest.fixture
def job(tmp_path):
    """A function that starts a batch script as Slurm does, in the folder of the sbatch call."""
    for name, text in COMMANDS.items():
        log = f"cd '{tmp_path}'" if name == "scontrol" else ""
        own = text.replace("> ", f"> {tmp_path}/")
        executable(tmp_path / name, f"#!/bin/bash\n{log}\n{own}\n")
    job = {"JOB_ID": 12, "JOB_NODELIST": "node[0-1]", "ARRAY_TASK_ID": 3, "CPUS_PER_TASK": 4}
    job["SUBMIT_DIR"] = tmp_path
    job_env = {f"SLURM_{name}": str(value) for name, value in job.items()}
    job_env |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "MUSTER_PYTHON": str(tmp_path / "python")}

    def start(name: str, *words: str, **env: str) -> subprocess.Popen:
        argv = ["bash", str(CHECKOUT / "slurm" / name), *words]
        return subprocess.Popen(argv, env=job_env | env, cwd=tmp_path, start_new_session=True)

    return start


@pytest.mark.parametrize("script", LEADING)
def test_a_script_becomes_the_leader_wherever_sbatch_was_called(job, tmp_path, script):
    assert job(script, "--lr", "a b").wait(timeout=300) == 0
    place, _, words = (tmp_path / "leader").read_text().strip().partition(": ")
    assert place == str(CHECKOUT)
    assert words.startswith(f"{CHECKOUT}/muster/run_module.py launch.leading.batch_job new")
    assert "--lr a b" in words


def test_paths_for_an_installation_are_those_of_the_sbatch_call(job, tmp_path):
    root = tmp_path / "in stalled" / "muster" / "_checkout"
    (root / "launch").mkdir(parents=True)
    shutil.copy(CHECKOUT / "launch" / "own_python.sh", root / "launch")
    for script in LEADING:
        assert job(script, MUSTER_DIR=str(root)).wait(timeout=300) == 0
        found = (tmp_path / "leader").read_text()
        assert found.startswith(f"{tmp_path}: {root}/muster/run_module.py launch.leading.batch_job")


def test_a_script_that_was_copied_elsewhere_says_where_to_submit_it(job, tmp_path, capfd):
    assert job("multinode.sh", MUSTER_DIR=str(tmp_path)).wait(timeout=300) == 2
    assert f"no Muster in {tmp_path}\ntip: submit from the checkout" in capfd.readouterr().err
    assert job("multinode.sh", MUSTER_DIR="/nowhere").wait(timeout=300) == 2


def test_each_starter_and_point_is_told(job, tmp_path):
    own = {"accelerate.sh": ["--workers accelerate --sync accelerate", "--workers accelerate"]}
    sizes = "--batch-size 128 --precision bf16"
    own["sweep.sh"] = [f"--nproc-per-node 2 --task synthetic {sizes}", "--nproc-per-node 2"]
    for script, (trainer, program) in own.items():
        assert job(script).wait(timeout=300) == 0
        assert (tmp_path / "leader").read_text().strip().endswith(f"new {trainer}")
        assert job(script, "--", "t.py").wait(timeout=300) == 0
        more = f" {sizes}" if script == "sweep.sh" else ""
        assert (tmp_path / "leader").read_text().strip().endswith(f"new {program} -- t.py{more}")


@pytest.mark.parametrize("script", LEADING)
def test_a_notice_before_the_leader_hears_it_ends_nothing(job, tmp_path, script):
    (tmp_path / "slow").touch()
    process = job(script)
    wait_until((tmp_path / "asked").exists)
    process.send_signal(signal.SIGUSR1)
    assert process.wait(timeout=300) == 0 and (tmp_path / "leader").exists()


@pytest.mark.parametrize("script", [*LEADING, "multinode_manual.sh"])
def test_without_python_a_script_says_how_to_make_it(job, script):
    process = job(script, MUSTER_PYTHON="$(touch pwned)")
    assert process.wait(timeout=300) == 2


def test_plain_srun_starts_a_worker_for_each_task(job, tmp_path):
    step = "srun --cpus-per-task=4 --kill-on-bad-exit=1 --unbuffered"
    assert job("multinode_manual.sh", "--sync", "ddp").wait(timeout=300) == 0
    python = tmp_path / "python"
    module = f"{CHECKOUT}/muster/run_module.py train.worker"
    worker = f"{CHECKOUT}: {step[5:]} {python} {module} --sync ddp"
    assert (tmp_path / "step").read_text().strip() == worker
    assert job("multinode_manual.sh", "--", "t.py", "--lr", "1").wait(timeout=300) == 0
    found = (tmp_path / "step").read_text().strip()
    assert found.startswith(f"{tmp_path}: {step[5:]} bash -c export RANK=$SLURM_PROCID ")
    assert found.endswith("worker /active/python t.py --lr 1")
    assert job("multinode_manual.sh", "--", "-m", "t.main").wait(timeout=300) == 0
    assert (tmp_path / "step").read_text().strip().endswith("worker /active/python -m t.main")


def test_plain_srun_s_workers_replace_placeholders(job, tmp_path):
    places = "SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=4 SLURM_NODEID=1 SLURM_NNODES=2"
    executable(tmp_path / "srun", f'#!/bin/bash\nshift 3; exec env {places} "$@"\n')
    others = f'case "$2" in launch.*) echo "$0" ;; *) exec {sys.executable} "$@" ;; esac'
    executable(tmp_path / "python", f"#!/bin/bash\n{others}\n")
    (tmp_path / "t.py").write_text("import sys; open('words', 'w').write(' '.join(sys.argv))")
    words = ["{rank}", "{node_rank}", "{nnodes}", "{local_world_size}", "{master_addr}", "{}"]
    assert job("multinode_manual.sh", "--", "t.py", *words).wait(timeout=300) == 0
    assert (tmp_path / "words").read_text() == "t.py 3 1 2 2 node0 {}"
