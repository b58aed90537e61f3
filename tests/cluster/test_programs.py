"""A user's program that does not use Muster: where its files come from."""

import re
import sys
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.ways import MANUAL, WAYS, start
from tests.launch.submit import JOBS, only_run, wait_until
from tests.written import executable

WHERE = """#!/bin/sh
echo "$RANK $WORLD_SIZE attempt $MUSTER_ATTEMPT $PWD $(cat text)"
[ -z "$1" ] || [ $MUSTER_ATTEMPT = 1 ] || sleep 10000
"""


@pytest.fixture
def where(project) -> Path:
    """A project whose program prints its folder, what it reads there, and its attempt."""
    (project / "where.sh").write_text(WHERE)
    (project / "where.sh").chmod(0o755)
    (project / "text").write_text("as submitted")
    return project


def test_edits_while_a_job_waits_change_nothing(cluster, where):
    flags = [*MANUAL, "--slurm", "begin=now+1hour", "--", "./where.sh"]
    process = start(cluster, ways.slurm(cluster, 2, *flags), where)
    try:
        pending = ("squeue", "--noheader", "--states=pending", "--format=%A")
        wait_until(lambda: len(cluster.run(*pending).stdout.split()) == 1)
        (where / "text").write_text("edited since")
        job = cluster.run(*pending).stdout.strip()
        cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        code, out, err = ways.finish(process)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, err
    snapshot = only_run(where / "logs") / "snapshot"
    assert f"0 2 attempt 0 {snapshot} as submitted" in out
    assert re.search(r"snapshot: \d+ files, [0-9.]+ (bytes|kB)", err), err


@pytest.mark.slow
def test_without_a_snapshot_a_program_runs_where_it_is(cluster, where):
    argv = ways.ssh(cluster, 2, "--no-snapshot", *MANUAL, "--", "./where.sh")
    out, _ = ways.succeed(cluster, argv, where)
    assert f"0 2 attempt 0 {where} as submitted" in out


@pytest.mark.slow
def test_requeued_script_goes_on_in_its_snapshot_as_next_attempt(cluster, where):
    argv = WAYS["sbatch"](cluster, 2, *MANUAL, "--", "./where.sh", "waits")
    process = start(cluster, argv, where)
    try:
        first = "logs/*/workers/rank_00001.out"
        wait_until(lambda: any(path.stat().st_size for path in where.glob(first)))
        (where / "text").write_text("edited since")
        cluster.run("scontrol", "requeue", ways.running_job(cluster))
        code, _, err = ways.finish(process)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, err
    run_dir = only_run(where / "logs")
    for number, folder in enumerate([run_dir / "attempts" / "0", run_dir]):
        printed = (folder / "workers" / "rank_00001.out").read_text()
        assert printed == f"1 2 attempt {number} {run_dir}/snapshot as submitted\n"


@pytest.mark.slow
def test_nodes_with_disks_of_their_own_get_the_snapshot(apart, where):
    flags = [*MANUAL, "--run-id", "sent", "--python", "python3", "--", "./where.sh"]
    out, _ = ways.succeed(apart, ways.ssh(apart, 2, *flags), where)
    sent = r"/muster/logs/\.snapshot-sent as submitted"
    assert re.search(rf"node1\.1\| 1 2 attempt 0 \S+{sent}", out), out
    left = apart.ssh("node1", "ls -A ~/muster/logs").stdout.split()
    assert {".snapshot-sent", "sent"} <= {*left}
    argv = [sys.executable, JOBS, "clean", "--remove"]
    nodes = ["--hosts", "node0,node1", "--ssh-config", str(apart.ssh_config)]
    out, _ = ways.succeed(apart, [*argv, *nodes], where)
    stays = "files that were sent for sent; kept: a file of its run has changed"
    assert re.search(rf"node1: \S+/muster/logs/\.snapshot-sent\n\s+{stays}", out), out
    left = apart.ssh("node1", "ls -A ~/muster/logs").stdout.split()
    assert {".snapshot-sent", "sent"} <= {*left}


@pytest.mark.slow
def test_over_ssh_commands_find_the_python_of_the_program_first(cluster, where):
    text = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    python = executable(where / ".venv" / "bin" / "python", text)
    argv = ways.ssh(cluster, 2, *MANUAL, "--", "bash", "-c", "command -v python")
    out, err = ways.succeed(cluster, argv, where)
    assert out.count(f"| {python}\n") == 2, out
    assert f"python: {python}, from the project; " in err


# The table of docs/own-programs.md: which ways to start pass on the shell's variables.
OF_THE_SHELL = {
    "ssh": (ways.ssh, ""),
    "slurm": (ways.slurm, "shell"),
    "sbatch": (WAYS["sbatch"], "shell"),
    "sbatch --export": (ways.sbatch("multinode.sh", "--export=PASSED_ON"), ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", OF_THE_SHELL)
def test_shell_variables_reach_program_as_the_page_says(cluster, project, way, monkeypatch):
    monkeypatch.setenv("OF_THE_SHELL", "shell")
    monkeypatch.setenv("PASSED_ON", "passed")
    begin, seen = OF_THE_SHELL[way]
    words = [*MANUAL, "--env", "PASSED_ON", "--", "sh", "-c", "echo $OF_THE_SHELL,$PASSED_ON"]
    ways.succeed(cluster, begin(cluster, 1, *words), project)
    output = only_run(project / "logs") / "workers/rank_00000.out"
    assert output.read_text() == f"{seen},passed\n"
