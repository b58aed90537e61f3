"""A Slurm job ends as it should, with its own exit code, and what the user types stays text."""

import json
import re
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from muster.errors import STOPPED
from muster.run_files import JOB, SUBMITIT
from tests.cluster import ways
from tests.cluster.ways import SHORT, WAYS, Run
from tests.launch.submit import JOBS, SUBMIT, only_run, wait_until
from tests.train.workers import losses, losses_by_step, read_json

WILD = "a b'c\"$(touch pwned)`id`;&\\*,%j"
WILD_MODEL = ["--task", "rte", "--model", WILD]


def submit(cluster, *flags) -> tuple[int, str, str]:
    return ways.call(cluster, ways.slurm(cluster, 1, *SHORT, "--sync", "single", *flags))


def pwned() -> list[Path]:
    places = (CHECKOUT, Path.home(), Path("/"))
    return [place / "pwned" for place in places if (place / "pwned").exists()]


def test_job_that_slurm_would_refuse_makes_no_run_folder(cluster, tmp_path):
    refused = "Slurm would refuse this job: "
    for settings, message in [
        ("--partition nope", f"{refused}invalid partition specified: nope"),
        ("--nodes 9 --sync ddp", "--nodes 9, but partition main has only 4 nodes"),
        ("--partition short", "--time 60 (the default), but partition short allows at most 2:00"),
        ("--gres unicorn:1", f"{refused}Invalid generic resource"),
        ("--slurm constraint=purple", refused),
        ("--hosts a,b", "--hosts has no effect with --launcher slurm"),
    ]:
        code, out, err = submit(cluster, *settings.split(), "--logs-dir", str(tmp_path))
        assert code == 2 and message in err and out == "", (settings, err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_of_several_partitions_slurm_chooses_the_one_that_can_start_the_job(cluster, tmp_path):
    """Another job has all nodes of `short`, which allows less time than the job requests."""
    busy = ["--exclusive", f"--nodelist={','.join(cluster.hosts[:2])}", "--nodes=2"]
    done = cluster.run("sbatch", *busy, "--output=/dev/null", "--wrap", "sleep 10000")
    try:
        wait_until(lambda: "RUNNING" in cluster.run("squeue", "-h", "--format=%T").stdout)
        words = ["--launcher", "slurm", "--wait", "--time", "3", "--logs-dir", str(tmp_path)]
        words += ["--partition", "short,main", "--account", "x"]
        program = ["--no-snapshot", *ways.MANUAL, "--", "true"]
        ways.succeed(cluster, [sys.executable, SUBMIT, *words, *program])
        job_id = read_json(JOB.path(only_run(tmp_path)))["job_id"]
        of_job = cluster.run("scontrol", "show", "job", job_id).stdout
        assert "Partition=main" in of_job and "Account=x" in of_job
    finally:
        cluster.run("scancel", done.stdout.split()[-1])


@pytest.mark.slow
def test_job_for_drained_nodes_is_queued_and_starts_later(cluster, tmp_path):
    drained = f"NodeName={cluster.hosts[1]}"
    words = ["--launcher", "slurm", "--nodes", "4", "--detach", "--logs-dir", str(tmp_path)]
    program = ["--no-snapshot", *ways.MANUAL, "--", "true"]
    cluster.run("scontrol", "update", drained, "State=DRAIN", "Reason=test")
    try:
        code, _, err = ways.call(cluster, [sys.executable, SUBMIT, *words, *program])
        assert code == 0, err
        assert "note: 1 node is down or drained (sinfo -R)" in err
        run_dir = only_run(tmp_path)
        assert not (run_dir / "exit.json").exists()
        cluster.run("scontrol", "update", drained, "State=RESUME")
        wait_until((run_dir / "exit.json").exists)
        assert read_json(run_dir / "exit.json")["code"] == 0
    finally:
        cluster.run("scontrol", "update", drained, "State=RESUME")
        ways.cancel_all(cluster)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.slow
def test_text_stays_text_on_the_way_through_sbatch(cluster, tmp_path):
    script = WAYS["sbatch"](cluster, 1, *SHORT, "--logs-dir", str(tmp_path), *WILD_MODEL)
    assert ways.call(cluster, script)[0] == 2 and WILD in (tmp_path / "job.out").read_text()
    assert pwned() == []


@pytest.mark.usefixtures("forked_workers")
def test_text_stays_text_on_the_way_through_slurm(cluster, tmp_path):
    code, _, err = submit(cluster, "--logs-dir", str(tmp_path), *WILD_MODEL)
    assert code == 2 and WILD in err
    folder = tmp_path / 'it\'s a "$(touch pwned)" 100% folder'
    code, out, err = submit(cluster, "--logs-dir", str(folder))
    assert code == 0, out + err
    run_dir = only_run(folder)
    assert len(losses(run_dir)) == 4 and pwned() == []
    assert len([*SUBMITIT.path(run_dir).glob("*.out")]) == 1
    assert [*tmp_path.glob("it*")] == [folder]


@pytest.mark.slow
@pytest.mark.usefixtures("paced")
def test_a_job_whose_time_is_up_is_requeued_and_goes_on(cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(ways.PYTHON, "MUSTER_MAX_REQUEUES", "1")
    run = Run(cluster, WAYS["sbatch"], tmp_path)
    try:
        job = ways.running_job(cluster)
        notice = ("scancel", "--batch", "--signal=USR1", job)
        cluster.run(*notice)
        first = run.run_dir / "attempts" / "0"
        wait_until((first / "workers").exists)  # which is moved there last
        stopped = read_json(first / "stopped.json")
        assert stopped["why"] == "notice" and max(losses_by_step(first)) == stopped["step"]
        wait_until(lambda: len(losses_by_step(run.run_dir)) > 20)
        assert min(losses_by_step(run.run_dir)) == stopped["step"] + 1
        assert only_run(tmp_path) == run.run_dir
        cluster.run(*notice)  # it has been requeued as often as is allowed
        assert run.end()[0] == 75
    finally:
        ways.cancel_all(cluster)
    of_leader = (path.read_text() for path in SUBMITIT.path(run.run_dir).glob("*.out"))
    printed = "".join((run.printed(), *of_leader))
    assert "error: out of time after 1 requeues; MUSTER_MAX_REQUEUES allows 1" in printed


@pytest.mark.slow
@pytest.mark.usefixtures("paced")
def test_trainers_without_agents_write_a_checkpoint_when_the_time_is_nearly_up(cluster, tmp_path):
    script = "multinode_manual.sh"
    (signal,) = re.findall(r"--signal=(\w+)@", (CHECKOUT / "slurm" / script).read_text())
    run = Run(cluster, ways.sbatch(script), tmp_path)
    try:
        # sent to all steps, but not to the batch script, as Slurm does before the time limit
        cluster.run("scancel", f"--signal={signal}", ways.running_job(cluster))
        assert run.end()[0] == STOPPED, run.printed()
    finally:
        ways.cancel_all(cluster)
    step = read_json(run.run_dir / "stopped.json")["step"]
    assert (run.run_dir / f"checkpoints/step_{step:08d}").is_dir(), run.printed()
    assert f"stopped cleanly after step {step} (SIG{signal})" in run.printed()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_a_program_submits_a_run_and_waits_for_its_end(cluster, tmp_path):
    def documents(*argv: str) -> tuple[int, list[dict]]:
        code, out, _ = ways.call(cluster, [sys.executable, *argv], tmp_path)
        return code, [json.loads(line) for line in out.splitlines()]

    logs = ["--logs-dir", str(tmp_path / "logs")]
    run = [SUBMIT, "--launcher", "slurm", "--nodes", "2", "--json", *logs]
    wait = [JOBS, *logs, "wait", "--json"]
    code, (first,) = documents(*run, *SHORT)
    assert code == 0 and (first["kind"], first["launcher"]) == ("submitted", "slurm")
    assert first["job_id"].isdigit()
    code, found = documents(*wait, first["run_id"], "--for", "10m")
    kinds = [one["kind"] for one in found]
    assert code == 0 and {"started", "step"} <= set(kinds) and kinds[-1] == "ended", found
    assert found[-1]["cause"] == "done"
    _, (late,) = documents(*run, "--slurm", "begin=now+1hour", *SHORT)
    code, (waiting,) = documents(*wait, late["run_id"], "--for", "2s")
    assert code == 124 and (waiting["kind"], waiting["word"]) == ("time_over", "pending")
    ways.cancel_all(cluster)
