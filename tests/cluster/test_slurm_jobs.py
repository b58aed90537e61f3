"""A job of Slurm ends as it should, with its own exit code, and what is typed stays text."""

import json
import os
import sys
from pathlib import Path

import pytest

from muster import run_files
from tests.cluster import ways
from tests.cluster.testbeds import REPOSITORY
from tests.cluster.ways import Run, finish, start
from tests.launch.submit import SUBMIT, wait_until
from tests.train.workers import losses

FLAGS = ["--task", "synthetic", "--max-steps", "3", "--evaluate", "never", "--threads", "1"]
WILD = "a b'c\"$(touch pwned)`id`;&\\*,%j"
SCRIPT = ways.sbatch("multinode.sh")


def submit(cluster, *flags) -> tuple[int, str, str]:
    argv = [sys.executable, SUBMIT, "--launcher", "slurm", "--wait", *FLAGS, *flags]
    return finish(start(cluster, argv))


def pwned() -> list[Path]:
    places = (REPOSITORY, Path.home(), Path("/"))
    return [place / "pwned" for place in places if (place / "pwned").exists()]


def test_what_the_cluster_does_not_have_is_reported_before_anything_is_made(cluster, tmp_path):
    folder = ["--logs-dir", str(tmp_path)]
    for settings, message in [
        (
            ["--partition", "nope"],
            "Slurm would not take this job: invalid partition specified: nope",
        ),
        (["--nodes", "9"], "Slurm would not take this job: "),
        (["--partition", "short", "--time", "3"], "--time 3, but partition short allows 2:00"),
        (["--gres", "unicorn:1"], "Slurm would not take this job: Invalid generic resource"),
        (["--constraint", "purple"], "Slurm would not take this job: "),
        (["--hosts", "a,b"], "--hosts has no effect with --launcher slurm"),
    ]:
        code, out, err = submit(cluster, *settings, *folder)
        assert code == 2 and message in err and out == "", (settings, err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("warm_workers")
def test_text_stays_text_on_the_way_through_slurm(cluster, tmp_path):
    folder = ["--logs-dir", str(tmp_path), "--task", "rte", "--model", WILD]
    code, _, _ = finish(start(cluster, SCRIPT(cluster, 1, "--sync", "single", *folder)))
    assert code == 2 and WILD in (tmp_path / "job.out").read_text()
    code, _, err = submit(cluster, "--sync", "single", *folder)
    assert code == 2 and WILD in err
    assert pwned() == []


@pytest.mark.usefixtures("warm_workers")
def test_a_folder_with_a_wild_name_is_a_folder(cluster, tmp_path):
    folder = tmp_path / 'it\'s a "$(touch pwned)" folder'
    code, out, err = submit(cluster, "--nodes", "2", "--logs-dir", str(folder))
    assert code == 0, out + err
    (run_dir,) = (path.parent for path in folder.glob("*/config.yaml"))
    assert len(losses(run_dir)) == 3 and pwned() == []


def test_variables_are_not_commands(cluster, tmp_path):
    env = {"MUSTER_PYTHON": "$(touch pwned)", "MUSTER_MAX_REQUEUES": "a[$(touch pwned)]"}
    before = {name: os.environ.get(name) for name in env}
    python = ways.PYTHON.copy()
    try:
        ways.PYTHON.update(env)
        code, _, _ = finish(start(cluster, SCRIPT(cluster, 1, *FLAGS, "--logs-dir", str(tmp_path))))
        assert code == 2 and "error: " in (tmp_path / "job.out").read_text()
        ways.PYTHON["MUSTER_PYTHON"] = sys.executable
        code, _, _ = finish(start(cluster, SCRIPT(cluster, 1, *FLAGS, "--logs-dir", str(tmp_path))))
        assert code != 0
    finally:
        ways.PYTHON.clear()
        ways.PYTHON.update(python)
    assert before == {name: os.environ.get(name) for name in env} and pwned() == []


def steps(run_dir: Path) -> list[int]:
    """Of a run that may still be writing, or of whose attempt no step is done."""
    path = run_dir / "metrics" / "rank_00000.jsonl"
    records = run_files.read_objects(path) if path.exists() else []
    return [record["step"] for record in records if record["kind"] == "step"]


def test_a_job_whose_time_is_up_is_requeued_and_goes_on(cluster, tmp_path):
    ways.PYTHON["MUSTER_MAX_REQUEUES"] = "1"
    try:
        run = Run(cluster, SCRIPT, tmp_path)
        job = ways.running_job(cluster)
        cluster.run("scancel", "--batch", "--signal=USR1", job)
        first = run.run_dir / "attempts" / "0"
        assert wait_until((first / "workers").exists)  # which is put aside last
        stopped = json.loads((first / "stopped.json").read_text())
        assert stopped["why"] == "notice" and steps(first)[-1] == stopped["step"]
        assert wait_until(lambda: len(steps(run.run_dir)) > 20)
        assert steps(run.run_dir)[0] == stopped["step"] + 1
        assert [path.parent for path in tmp_path.glob("*/config.yaml")] == [run.run_dir]
        # it has been requeued as often as it may
        cluster.run("scancel", "--batch", "--signal=USR1", job)
        code, _, _ = finish(run.process, timeout_s=300)
    finally:
        del ways.PYTHON["MUSTER_MAX_REQUEUES"]
        ways.cancel_all(cluster)
    message = (tmp_path / "job.out").read_text()
    assert (
        code == 75
        and "error: out of time after 1 requeues; MUSTER_MAX_REQUEUES allows 1" in message
    )


@pytest.mark.usefixtures("warm_workers")
def test_a_program_submits_a_run_and_waits_for_its_end(cluster, tmp_path):
    def documents(*argv: str) -> tuple[int, list[dict]]:
        code, out, _ = finish(start(cluster, [sys.executable, *argv], cwd=tmp_path))
        return code, [json.loads(line) for line in out.splitlines()]

    logs = str(tmp_path / "logs")
    run = [SUBMIT, "--launcher", "slurm", "--json", "--logs-dir", logs]
    wait = [str(REPOSITORY / "launch" / "jobs.py"), "--logs-dir", logs, "wait", "--json"]
    code, (first,) = documents(*run, "--nodes", "2", *FLAGS)
    assert code == 0 and (first["kind"], first["launcher"]) == ("submitted", "slurm")
    assert first["job_id"].isdigit()
    code, found = documents(*wait, first["run_id"], "--for", "10m")
    kinds = [one["kind"] for one in found]
    assert code == 0 and {"started", "step"} <= set(kinds) and kinds[-1] == "ended", found
    assert found[-1]["cause"] == "done"
    (tmp_path / "fails.py").write_text("raise SystemExit(7)")
    _, (first,) = documents(*run, "--nodes", "2", "--", "fails.py")
    code, found = documents(*wait, first["run_id"])
    assert code == found[-1]["exit_code"] == 7, found[-1]["message"]
    assert found[-1]["cause"] == "program"
    _, (late,) = documents(*run, "--slurm", "begin=now+1hour", *FLAGS)
    code, (waiting,) = documents(*wait, late["run_id"], "--for", "2s")
    assert code == 124 and (waiting["kind"], waiting["word"]) == ("time_over", "pending")
    ways.cancel_all(cluster)
