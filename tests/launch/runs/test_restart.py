"""A run that loses a worker continues from its checkpoint; one without progress is given up."""

import pytest

from configs import cli
from configs.settings.train import TrainConfig
from launch.runs import restart
from launch.spec import LaunchSpec, Program
from muster import run_files
from muster.errors import NO_RETRY, STOPPED
from tests.fork_server import interpreter
from tests.launch.submit import recovery_s, start, submit, wait_until, worker
from tests.train.workers import read_json
from tests.written import write

FLAGS = ["--launcher", "local", "--task", "synthetic", "--nodes", "2", "--threads", "1"]
# Long enough that the run is not over before its first checkpoint is noticed.
SLOW = ["--dropout", "0", "--evaluate", "never", "--checkpoint-every", "20", "--epochs", "25"]


def test_a_killed_worker_is_named_and_the_run_goes_on(tmp_path):
    hurt = [*FLAGS, *SLOW, "--logs-dir", str(tmp_path), "--run-id", "hurt", "--max-restarts", "2"]
    process = start(*hurt, python=interpreter())
    wait_until(lambda: any(tmp_path.glob("hurt/checkpoints/step_????????")))
    victim = worker(process, 1)
    assert victim is not None
    victim.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert out.count(f"{restart.WITHOUT_TORCHRUN}\n") == 1
    assert "attempt 2 of at most 3: continuing from the last checkpoint on 2 nodes\n" in out
    assert "resuming from step " in out, out
    assert "error: rank 1 on node1 was killed by SIGKILL\n" in err, err
    pointer = "all of its output: muster jobs logs hurt --attempt 1 --rank 1\n"
    first = tmp_path / "hurt" / "attempts" / "0"
    logs = [first / "workers" / f"rank_00001.{end}" for end in ("out", "err")]
    assert (pointer in err) == any(log.stat().st_size for log in logs), err
    # the other rank's message about it is not a cause, and is in that rank's own log
    assert "lost rank" not in err and "lost another worker" not in err, err
    log = (first / "workers" / "rank_00000.err").read_text()
    agent = read_json(first / "agents" / "node_00000.exit.json")
    # on a busy machine it may be killed before it can write
    is_killed = "SIGKILL" in [process["signal"] for process in agent["terminated"].values()]
    assert is_killed or "error: lost " in log or "error: stopped by SIGTERM" in log
    assert recovery_s(out, tmp_path / "hurt", "step [0-9]+ again") > 0
    names = {path.name for path in (tmp_path / "hurt" / "attempts" / "0").iterdir()}
    # "stacks" exists only if a worker could still be asked
    assert names - {"stacks"} == {
        *("agents", "exit.json", "exits", "metrics", "start.json", "workers")
    }


def test_a_crash_loop_ends_by_itself(tmp_path):
    # in each attempt, the loss is no longer finite at the second step
    flags = ["--optimizer", "sgd", "--lr", "1e38", "--logs-dir", str(tmp_path)]
    code, _, err = submit(*FLAGS, *flags, "--max-restarts", "9", "--run-id", "loop")
    assert code == NO_RETRY, err
    assert err.endswith(
        "error: 3 attempts in a row did not get past step 1, so the run is not restarted again\n"
    )
    assert len(list((tmp_path / "loop" / "attempts").iterdir())) == 3


def test_wrong_flags_and_a_stop_are_no_reason_to_start_again(tmp_path):
    spec = LaunchSpec("run", tmp_path, Program(()), max_restarts=1)
    for code in (0, 2, STOPPED, NO_RETRY, 130, 143, 129):
        assert not restart.is_due(spec, code)
    assert restart.is_due(spec, 1) and restart.is_due(spec, 137)


def test_the_last_step_of_any_rank_counts(tmp_path):
    assert restart.last_step(tmp_path) == 0
    for rank, last in enumerate([3, 4]):
        steps = "".join(f'{{"kind": "step", "step": {step}}}\n' for step in range(1, last + 1))
        write(tmp_path, {f"metrics/rank_{rank:05d}.jsonl": steps + '{"kin'})
    (tmp_path / "metrics" / "rank_00002.jsonl").mkdir()  # so that it cannot be read as a file
    assert restart.last_step(tmp_path) == 4


def test_attempt_is_put_aside_once(tmp_path):
    (tmp_path / "exits").mkdir()
    (tmp_path / "checkpoints").mkdir()
    assert run_files.archive_attempt(tmp_path, 0) and not run_files.archive_attempt(tmp_path, 0)
    assert (tmp_path / "attempts" / "0" / "exits").is_dir()
    assert (tmp_path / "checkpoints").is_dir() and not (tmp_path / "exits").exists()


def test_going_on_keeps_what_was_asked_for_but_the_resets(tmp_path):
    flags = ("--task=synthetic", "--lr=0.5", "--resume=/else", "--reset-optimizer")
    program = Program.module("train.worker", *flags, takes_resume=True)
    spec = LaunchSpec("run", tmp_path, program)
    assert restart.with_resume_flags(spec, tmp_path) == spec  # no checkpoint yet
    done = tmp_path / "checkpoints" / "step_00000007"
    write(done, {"manifest.json": {}, "state.json": {"run_id": "of somebody else"}})
    assert restart.with_resume_flags(spec, tmp_path) == spec
    write(done, {"state.json": {"run_id": "run"}})
    again = restart.with_resume_flags(spec, tmp_path)
    (train,) = cli.parse([TrainConfig], again.program.argv[2:], prog="", description="")
    assert (train.resume, train.lr, train.reset_optimizer) == ("auto", 0.5, False)
    assert restart.with_resume_flags(again, tmp_path) == again


@pytest.mark.parametrize(
    ("ours", "workers", "then", "line"),
    [
        (True, "torchrun", "manual", f"{restart.WITHOUT_TORCHRUN}\n"),
        (True, "manual", "manual", ""),
        (True, "preload", "preload", ""),
        (False, "torchrun", "torchrun", ""),
    ],
)
def test_our_own_trainer_starts_again_without_torchrun(tmp_path, capsys, ours, workers, then, line):
    program = Program.module("train.worker", "--task=synthetic", takes_resume=ours)
    again = restart.next_attempt(LaunchSpec("run", tmp_path, program, workers=workers))
    assert (again.attempt, again.workers) == (1, then)
    assert capsys.readouterr().out == line


def test_restart_waits_where_the_end_found_no_space(tmp_path):
    assert restart.pause_s(tmp_path) > 0
    write(tmp_path, {"exit.json": {"cause": "disk_full"}})
    assert restart.pause_s(tmp_path) > 0
    write(tmp_path, {"exit.json": {"cause": "program"}})
    assert restart.pause_s(tmp_path) == 0
