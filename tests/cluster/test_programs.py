"""A user's program, with no word of Muster in it, on real Slurm and over real ssh."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY
from tests.cluster.ways import finish
from tests.launch.programs.test_own_programs import DDP
from tests.launch.submit import SUBMIT, wait_until

WHOLE = "WHOLE_MATRIX" in os.environ


def track(project: Path) -> None:
    """Have git know the project; on another Slurm's system there may be none, nor need it be."""
    if shutil.which("git"):
        for words in (["init", "-q"], ["add", "."]):
            subprocess.run(["git", *words], cwd=project, check=True)


@pytest.fixture
def project(tmp_path) -> Path:
    """A repository of the user's, with the names that this one has, too."""
    root = tmp_path / "project"
    (root / "configs").mkdir(parents=True)
    (root / "configs" / "__init__.py").touch()
    (root / "train.py").write_text(DDP)
    (root / "where.sh").write_text('#!/bin/sh\necho "$RANK $WORLD_SIZE $PWD $(cat text)"\n')
    (root / "where.sh").chmod(0o755)
    (root / "text").write_text("as submitted")
    (root / ".gitignore").write_text("logs/\n")
    track(root)
    return root


def start(cluster, project: Path, argv: list[str]) -> subprocess.Popen:
    return ways.start(cluster, argv, project)


def slurm(*flags: str) -> list[str]:
    return [sys.executable, SUBMIT, "--launcher", "slurm", "--wait", *flags]


def ssh(cluster, *flags: str) -> list[str]:
    hosts = ",".join(cluster.hosts)
    return [ways.SSH, hosts, "--ssh-config", str(cluster.ssh_config), *flags]


def script(project: Path, *words: str, nodes: int = 4) -> list[str]:
    output = f"--output={project}/job.out"
    return [
        *ways.SBATCH,
        f"--nodes={nodes}",
        output,
        str(REPOSITORY / "slurm" / "multinode.sh"),
        *words,
    ]


def only_run(project: Path) -> Path:
    (run_dir,) = (path for path in (project / "logs").iterdir() if path.is_dir())
    return run_dir


def ended_ranks(run_dir: Path) -> list[int]:
    return sorted(json.loads(path.read_text())["rank"] for path in run_dir.glob("exits/*.json"))


@pytest.mark.parametrize("way", ["slurm", "ssh"] if WHOLE else ["ssh"])
def test_workers_of_a_node_share_one_import(cluster, project, way):
    show = "import sys\nbefore = sorted({'torch', 'configs'} & set(sys.modules))\n"
    (project / "train.py").write_text(f"{show}{DDP}print('before:', before, flush=True)\n")
    flags = ["--nodes", "2", "--nproc-per-node", "2", "--workers", "preload"]
    begin = slurm if way == "slurm" else lambda *words: ssh(cluster, *words)
    argv = begin(*flags, "--run-id", "run", "--", "train.py", "--lr", "1e-3")
    code, out, err = finish(start(cluster, project, argv), timeout_s=300)
    assert code == 0, err
    assert "rank 0 of 4: step 2" in out
    outputs = project.glob("logs/run/workers/*.out")
    assert [path.read_text().splitlines()[-1] for path in outputs] == ["before: ['torch']"] * 4
    failing = begin(*flags, "--run-id", "fails", "--", "train.py", "--lr", "1e-3", "--fail", "3")
    code, _, err = finish(start(cluster, project, failing), timeout_s=300)
    assert code == 1 and err.rstrip().endswith("ValueError: sample 17 is empty"), err


def test_edits_while_a_job_waits_change_nothing(cluster, project):
    flags = ["--nodes", "2", "--workers", "manual", "--slurm", "begin=now+1hour"]
    process = start(cluster, project, slurm(*flags, "--", "./where.sh"))
    try:
        pending = ("squeue", "--noheader", "--states=pending", "--format=%A")
        assert wait_until(lambda: len(cluster.run(*pending).stdout.split()) == 1)
        (project / "text").write_text("edited since")
        job = cluster.run(*pending).stdout.strip()
        cluster.run("scontrol", "update", f"jobid={job}", "starttime=now")
        code, out, err = finish(process, timeout_s=300)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, err
    run_dir = only_run(project)
    assert f"0 2 {run_dir}/snapshot as submitted" in out
    assert re.search(r"snapshot: 5 files, \d+ (bytes|kB)", err), err


def test_without_a_snapshot_a_program_runs_where_it_is(cluster, project):
    argv = ssh(cluster, "--nodes", "2", "--no-snapshot", "--workers", "manual", "--", "./where.sh")
    code, out, err = finish(start(cluster, project, argv), timeout_s=300)
    assert code == 0, err
    assert f"0 2 {project} as submitted" in out


def test_a_requeued_script_goes_on_with_its_own_snapshot_and_knows_its_attempt(cluster, project):
    (project / "where.sh").write_text(
        '#!/bin/sh\necho "attempt $MUSTER_ATTEMPT: $(cat text)"\n'
        "[ $MUSTER_ATTEMPT = 1 ] || sleep 10000\n"
    )
    file = str(REPOSITORY / "slurm" / "multinode.sh")
    output = f"--output={project}/job.out"
    argv = [*ways.SBATCH, "--nodes=2", output, file, "--workers", "manual", "--", "./where.sh"]
    process = start(cluster, project, argv)
    try:
        first = "logs/*/workers/rank_00001.out"
        assert wait_until(lambda: any(path.stat().st_size for path in project.glob(first)))
        (project / "text").write_text("edited since")
        cluster.run("scontrol", "requeue", ways.running_job(cluster))
        code, _, err = finish(process, timeout_s=300)
    finally:
        ways.cancel_all(cluster)
    assert code == 0, err
    run_dir = only_run(project)
    for number, folder in enumerate([run_dir / "attempts" / "0", run_dir]):
        printed = (folder / "workers" / "rank_00001.out").read_text()
        assert printed == f"attempt {number}: as submitted\n"


def test_nodes_with_disks_of_their_own_get_the_snapshot(other_cluster, project):
    venv = os.environ.get("MUSTER_BED_VENV", str(Path(sys.prefix)))
    cluster = other_cluster("--nodes", "2", "--private-home", env={"MUSTER_BED_VENV": venv})
    python = ways.PYTHON.copy()
    ways.PYTHON.clear()  # the nodes' own environment, at ~/muster/.venv
    try:
        argv = [sys.executable, SUBMIT, "--launcher", "ssh", "--hosts", "node0,node1"]
        argv += ["--ssh-config", str(cluster.ssh_config), "--workers", "manual", "--run-id", "sent"]
        argv += ["--python", "python3", "--", "./where.sh"]
        code, out, err = finish(start(cluster, project, argv), timeout_s=300)
    finally:
        ways.PYTHON.update(python)
    assert code == 0, err
    assert re.search(r"node1\.1\| 1 2 \S+/muster/logs/\.snapshot-sent as submitted", out), out
