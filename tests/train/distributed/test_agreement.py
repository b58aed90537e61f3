"""Ranks exchange values without pickle, so that data from a stranger runs no code.

And a slow disk ends no run: ranks wait for it where they must, and are not late for a collective.
"""

import json
import math
import pickle
import signal

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from muster.checkout import CHECKOUT
from tests.fuzzing import fuzzed
from tests.launch.submit import wait_until
from tests.train.workers import finish, free_port, read_json, results_of, start
from train.checkpoints import storage
from train.distributed import agreement
from train.distributed.agreement import encoded, gather

# a slow disk takes longer than the limit, within which ranks of a busy machine are not late
SLOW_S, TIMEOUT_S = 20.0, 15.0
TRAIN = ["--task", "synthetic", "--sync", "all_reduce", "--lr", "0.01", "--threads", "1"]


def start_two(run_dir, *flags):
    """Start two workers of one run by hand, which write to a slow disk."""
    script = str(CHECKOUT / "tests" / "train" / "slow_disk_worker.py")
    place = ["--logs-dir", str(run_dir.parent), "--run-id", run_dir.name]
    port = str(free_port())
    where = ["--master-ip", "127.0.0.1", "--master-port", port, "--world-size", "2"]
    more = [*TRAIN, *place, *where, "--timeout-s", str(TIMEOUT_S), *flags]
    env = {"PYTHONPATH": str(CHECKOUT)}
    return [start([script, str(SLOW_S), *more, "--rank", str(rank)], env) for rank in range(2)]


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """Return a complete run and a stopped run, which wait for their disks at the same time."""
    logs = tmp_path_factory.mktemp("logs")
    whole, cut = logs / "whole", logs / "cut"
    # a step takes only a small part of the time of a checkpoint
    often = ["--checkpoint-every", "1", "--keep-last", "99"]
    done = start_two(whole, *often, "--epochs", "2", "--keep-best", "accuracy")
    stopped = start_two(cut, *often, "--epochs", "100000")
    metrics = cut / "metrics" / "rank_00001.jsonl"
    wait_until(
        lambda: (
            any(one.poll() is not None for one in stopped)
            or (metrics.exists() and metrics.stat().st_size > 9000)
        )
    )
    assert stopped[1].poll() is None, finish(stopped)
    stopped[1].send_signal(signal.SIGTERM)
    return (whole, finish(done)), (cut, finish(stopped))


@pytest.mark.slow
def test_slow_disk_is_awaited_at_best_and_last_checkpoint(ended):
    run_dir, workers = ended[0]
    assert [code for code, *_ in workers] == [0, 0], workers
    steps = [checkpoint.step for checkpoint in storage.list_checkpoints(run_dir / "checkpoints")]
    # 32 is the end of the first epoch, hence the best so far
    assert (steps[0], steps[-1]) == (64, 1) and 32 in steps and 2 not in steps, steps
    assert (run_dir / "model" / "model.safetensors").exists()
    assert read_json(run_dir / "summary.json")["steps"] == 64


@pytest.mark.slow
def test_slow_disk_is_waited_for_at_an_orderly_stop(ended):
    run_dir, workers = ended[1]
    assert [code for code, *_ in workers] == [75, 75], workers
    stopped = read_json(run_dir / "stopped.json")
    newest = storage.list_checkpoints(run_dir / "checkpoints")[0]
    assert stopped["why"] == "SIGTERM" and newest.step == stopped["step"]
    storage.read_verified(newest.path)
    causes = [read_json(run_dir / "exits" / f"rank_{rank:05d}.json")["cause"] for rank in (0, 1)]
    assert causes == ["stopped", "stopped"]


VALUES = [
    None, True, 7, 2**70, -0.0, math.nan, math.inf, "é\ud800\n", [], {}, [1, [2, [3.5]]],
    {"a": {"b": [None]}},
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_plain_value_is_gathered_unchanged(value):
    assert repr(gather(1, value)) == repr([value])


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        ({1: "a"}, {"1": "a"}),
        (torch.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        ([np.float64(0.5), np.int64(3), np.bool_(True)], [0.5, 3, True]),
        ({"f1": np.array([0.1, 0.2])}, {"f1": [0.1, 0.2]}),
    ],
    ids=range(5),
)
def test_value_has_the_same_form_on_any_number_of_ranks(value, plain):
    assert repr(gather(1, value)) == repr([plain])


def test_value_without_a_plain_form_is_refused_before_sending():
    with pytest.raises(TypeError, match="ZeroDivisionError cannot be sent"):
        encoded({"why": [ZeroDivisionError()]})


class Evil:
    def __reduce__(self):
        return (exec, ("raise SystemExit('code of a stranger ran')",))


ODD = [b"", pickle.dumps(Evil()), b"1" * 5000, bytes([255] * 100)]


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_bytes_of_no_value_are_refused(data):
    with pytest.raises(agreement.PeerFailed, match="rank 1 "):
        agreement._value_of(1, torch.tensor(list(data), dtype=torch.uint8))


@fuzzed(st.binary(max_size=200), examples=50)
def test_random_bytes_are_a_plain_value_or_refused(data):
    try:
        value = agreement._value_of(1, torch.tensor(list(data), dtype=torch.uint8))
    except agreement.PeerFailed:
        return
    json.dumps(value)


def exchange_with_a_stranger(ranks, how):
    """Rank 1 sends a pickle that runs code, in the form of torch's object collectives."""
    if ranks.rank:
        evil = torch.frombuffer(bytearray(pickle.dumps(Evil())), dtype=torch.uint8)
        agreement.encoded = lambda value: evil
    act = {
        "gather": lambda: agreement.gather(2, "well"),
        "gather_results": lambda: agreement.gather_results(2, lambda: "well"),
        "broadcast_result": lambda: agreement.broadcast_result(ranks.rank, 2, lambda: "well"),
    }[how]
    try:
        return repr(act())
    except agreement.PeerFailed as error:
        return str(error)


@pytest.mark.parametrize("how", ["gather", "gather_results", "broadcast_result"])
def test_pickle_of_a_stranger_is_not_run(tmp_path, how):
    found = results_of(exchange_with_a_stranger, 2, tmp_path, how)
    assert "rank 1 sent a value that " in found[0], found


def gather_and_collect(ranks):
    tensor = torch.full((3, 2), ranks.rank, dtype=torch.bfloat16)
    gathered = agreement.gather(2, {"rank": ranks.rank, "text": "x" * ranks.rank})
    return gathered, agreement.collect(ranks.rank, 2, 1, tensor)


def test_values_of_different_sizes_are_gathered_and_tensors_collected(tmp_path):
    values = [{"rank": rank, "text": "x" * rank} for rank in (0, 1)]
    (first, nothing), (second, tensors) = results_of(gather_and_collect, 2, tmp_path)
    assert first == second == values and nothing == []
    expected = [torch.full((3, 2), rank, dtype=torch.bfloat16) for rank in (0, 1)]
    assert all(torch.equal(*pair) for pair in zip(tensors, expected, strict=True))
