"""Inside a job that someone holds, a run uses the job's nodes, and leaves the job as it was."""

import os
import shlex
import signal
import sys

import pytest

from tests.cluster import ways
from tests.cluster.testbeds import Cluster
from tests.cluster.ways import SHORT, Run, in_held_job, steps_of
from tests.launch.submit import DOCTOR, SUBMIT, wait_until
from tests.train.workers import losses, read_json

pytestmark = pytest.mark.slow

INSTEAD = "to queue a job instead: env -u SLURM_JOB_ID muster run ..."


def submit(*flags: str) -> str:
    return shlex.join([sys.executable, SUBMIT, "--launcher", "slurm", *flags])


def in_shell(cluster: Cluster, *lines: str) -> tuple[int, str, str]:
    """Run commands in a shell of salloc, which has four nodes."""
    return ways.call(cluster, ["salloc", "--nodes=4", "bash", "-c", "\n".join(lines)])


def jobs_queued(cluster: Cluster) -> list[str]:
    return cluster.run("scontrol", "show", "jobs", "--oneliner").stdout.split("JobId=")[1:]


def ids(cluster: Cluster) -> set[str]:
    return {job.split()[0] for job in jobs_queued(cluster)}


@pytest.mark.usefixtures("forked_workers")
def test_a_shell_of_salloc_has_its_nodes_used(cluster, tmp_path):
    """All nodes, or fewer; settings that need a new job are refused, and no job is queued."""
    before = ids(cluster)
    flags = [*SHORT, "--logs-dir", str(tmp_path)]
    code, out, err = in_shell(
        cluster,
        submit(*flags, "--run-id", "all") + " || exit 91",
        submit(*flags, "--run-id", "two", "--nodes", "2", "--nproc-per-node", "2") + " || exit 92",
        submit(*flags, "--nodes", "9", "--partition", "main"),
        "[ $? = 2 ] || exit 93",
        shlex.join([sys.executable, DOCTOR, "--quick", "--launcher", "slurm"]) + " || exit 94",
    )
    assert code == 0, (code, out, err)
    assert f"on its nodes: node0, node1, node2, node3; {INSTEAD}\n" in out
    assert f"on 2 of its 4 nodes: node0, node1; {INSTEAD}\n" in out
    assert "srun works on 4 of 4" in out
    assert "error: --partition has no effect: this is inside job " in err
    assert "error: --nodes 9, but this is inside job " in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all", "two"]
    for name, nodes in (("all", 4), ("two", 2)):
        agents = sorted((tmp_path / name / "agents").glob("node_?????.json"))
        hosts = [read_json(path)["node"] for path in agents]
        assert hosts == [f"node{index}" for index in range(nodes)]
        assert len(losses(tmp_path / name)) == 4
    assert len(ids(cluster) - before) == 1  # Slurm forgets older ones in the meantime


@pytest.mark.usefixtures("forked_workers")
def test_run_inside_a_full_srun_step_starts_without_waiting(cluster, tmp_path):
    """The step is like `srun --pty bash`, but in a user's script."""
    script = tmp_path / "job.sh"
    step = ["srun", "--nodes=1", "--ntasks=1", "--cpus-per-task=8", "--mem=500", "--exact"]
    run = submit(*SHORT, "--nodes", "2", "--logs-dir", str(tmp_path), "--run-id", "run")
    script.write_text(f"#!/bin/bash\n{shlex.join(step)} {run}\n")
    asked = ["--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=8", "--mem=500"]
    argv = [*ways.SBATCH, *asked, f"--output={tmp_path / 'out'}", str(script)]
    try:
        code, _, err = ways.call(cluster, argv)
    finally:
        ways.cancel_all(cluster)
    output = (tmp_path / "out").read_text()
    assert code == 0, err + output
    assert "on 2 of its 3 nodes: node0, node1; " in output
    assert len(losses(tmp_path / "run")) == 4


@pytest.mark.usefixtures("paced")
def test_ctrl_c_ends_the_run_in_order_and_nothing_else(cluster, held, tmp_path, monkeypatch):
    # with this, `python -m` finds no modules in the folder in which it is started
    monkeypatch.setitem(ways.PYTHON, "PYTHONSAFEPATH", "1")
    run = Run(cluster, in_held_job, tmp_path)
    logs, name = ["--logs-dir", str(tmp_path)], run.run_dir.name
    status = ways.jobs(cluster, *logs, "status")
    assert f"{name}: running (in job {held}; led by" in status
    os.killpg(run.process.pid, signal.SIGINT)
    run.ends()
    code, out, err = run.end()
    assert code == 75 and "Ctrl-C again" in out, out + err
    assert err.splitlines()[-1].startswith("stopped cleanly after step ")
    assert err.count("stopped cleanly after step ") == 1
    assert ways.jobs(cluster, *logs, "status").startswith(f"{name}: stopped (")
    wait_until(lambda: set(steps_of(cluster, held)) <= {"other", "extern"})


@pytest.mark.slow
@pytest.mark.usefixtures("paced")
def test_run_in_held_job_ends_when_cancelled_or_leader_dies(cluster, held, tmp_path):
    run = Run(cluster, in_held_job, tmp_path / "cancelled")
    logs = ["--logs-dir", str(tmp_path / "cancelled")]
    assert ways.jobs(cluster, *logs, "cancel").endswith(": stopped\n")
    assert run.end()[0] == 75 and run.left() == []
    assert held in {job.split()[0] for job in jobs_queued(cluster) if "JobState=RUNNING" in job}
    killed = Run(cluster, in_held_job, tmp_path / "killed")
    killed.process.kill()
    killed.ends()
    killed.end()


TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def test_command_started_by_several_srun_tasks_is_refused_by_each(cluster, tmp_path):
    """It is not refused in the shell of a step's terminal, however many tasks the step has."""
    run = submit(*SHORT, "--logs-dir", str(tmp_path), "--nodes", "2")
    shell = f'[ "$SLURM_PROCID" != 0 ] || exec {run} --dry-run'
    step = ["srun", "--nodes=2", "--ntasks=2", "--pty", "bash", "-c", shell]
    code, out, err = in_shell(
        cluster,
        f"srun --nodes=2 --ntasks=2 {run}",
        "[ $? = 2 ] || exit 91",
        f"{shlex.join([sys.executable, '-c', TERMINAL, *step])} </dev/null || exit 92",
    )
    assert code == 0, (code, out, err)
    line = "error: srun has started this command 2 times (SLURM_STEP_NUM_TASKS), and each would "
    assert err.count(line) == 2
    assert "on 2 of its 4 nodes: node0, node1" in out and not any(tmp_path.iterdir())
