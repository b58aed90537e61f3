"""A slow disk ends no run: ranks wait for it where they must, and are not late for a collective."""

import signal

import pytest

from muster.checkout import CHECKOUT
from tests.launch.submit import wait_until
from tests.train.workers import finish, free_port, read_json, start
from train.checkpoints import storage

pytestmark = pytest.mark.matrix

# a slow disk is slower than the ranks of a busy machine, which are not late within the limit
SLOW_S, TIMEOUT_S = 20.0, 15.0
TRAIN = ["--task", "synthetic", "--sync", "all_reduce", "--lr", "0.01", "--threads", "1"]


def start_two(run_dir, *flags):
    """Two workers of one run, started by hand, that write to a slow disk."""
    script = str(CHECKOUT / "tests" / "train" / "slow_disk_worker.py")
    place = ["--logs-dir", str(run_dir.parent), "--run-id", run_dir.name]
    port = str(free_port())
    where = ["--master-ip", "127.0.0.1", "--master-port", port, "--world-size", "2"]
    more = [*TRAIN, *place, *where, "--timeout-s", str(TIMEOUT_S), *flags]
    env = {"PYTHONPATH": str(CHECKOUT)}
    return [start([script, str(SLOW_S), *more, "--rank", str(rank)], env) for rank in range(2)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A run to its end, and one that is told to stop; they wait for their disks side by side."""
    logs = tmp_path_factory.mktemp("logs")
    whole, cut = logs / "whole", logs / "cut"
    # a step takes a small part of the time that one checkpoint takes
    often = ["--checkpoint-every", "1", "--keep-last", "99"]
    done = start_two(whole, *often, "--epochs", "2", "--keep-best", "accuracy")
    stopped = start_two(cut, *often, "--epochs", "100000")
    metrics = cut / "metrics" / "rank_00001.jsonl"
    trained = wait_until(
        lambda: (
            any(one.poll() is not None for one in stopped)
            or (metrics.exists() and metrics.stat().st_size > 9000)
        )
    )
    assert trained and stopped[1].poll() is None, finish(stopped)
    stopped[1].send_signal(signal.SIGTERM)
    return (whole, finish(done)), (cut, finish(stopped))


def test_slow_disk_is_awaited_at_best_and_last_checkpoint(ended):
    run_dir, workers = ended[0]
    assert [code for code, *_ in workers] == [0, 0], workers
    steps = [checkpoint.step for checkpoint in storage.list_checkpoints(run_dir / "checkpoints")]
    # 32 is the end of the first epoch, hence the best so far
    assert (steps[0], steps[-1]) == (64, 1) and 32 in steps and 2 not in steps, steps
    assert (run_dir / "model" / "model.safetensors").exists()
    assert read_json(run_dir / "summary.json")["steps"] == 64


def test_slow_disk_is_waited_for_at_an_orderly_stop(ended):
    run_dir, workers = ended[1]
    assert [code for code, *_ in workers] == [75, 75], workers
    stopped = read_json(run_dir / "stopped.json")
    newest = storage.list_checkpoints(run_dir / "checkpoints")[0]
    assert stopped["why"] == "SIGTERM" and newest.step == stopped["step"]
    storage.read_verified(newest)
    causes = [read_json(run_dir / "exits" / f"rank_{rank:05d}.json")["cause"] for rank in (0, 1)]
    assert causes == ["stopped", "stopped"]
