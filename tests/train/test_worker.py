"""Whole runs of real workers: what they print, what they leave in the run folder, how they end."""

import re

import pytest

from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.train.workers import (
    errors_of,
    finish,
    free_port,
    losses,
    read_json,
    records,
    start,
    start_by_hand,
)
from train import worker
from train.distributed.world import World

TRAIN = ["--task", "synthetic", "--lr", "0.01", "--dropout", "0", "--threads", "1"]


def flags(logs, run_id, *more):
    return [*TRAIN, "--logs-dir", str(logs), "--run-id", run_id, *more]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def single(logs):
    """Run a single process, whose results all other runs must equal."""
    (ended,) = finish([start(["-m", "train.worker", *flags(logs, "single", "--sync", "single")])])
    assert ended[0] == 0, ended[2]
    return ended[1], logs / "single"


def test_a_single_run_prints_and_records(single):
    out, run_dir = single
    summary, steps = read_json(run_dir / "summary.json"), records(run_dir, 0, "step")
    assert [line["step"] for line in steps] == list(range(1, 97))
    assert summary["accuracy"] > 0.95 and summary["steps"] == 96
    assert summary["epoch_s"] == summary["train_samples"] / summary["samples_per_s"]
    assert sum(step["step_s"] for step in steps) < summary["total_s"] < 600
    message = out.splitlines()
    assert [line.split()[0] for line in message[:8]] == ["step"] * 5 + ["epoch"] * 3
    assert message[0] == f"step 1  loss {steps[0]['loss']:.6f}"
    assert "seconds per iteration" in out and str(run_dir) in out and "\r" not in out
    assert {"config.yaml", "environment", "exits", "metrics", "summary.json"} <= {
        path.name for path in run_dir.iterdir()
    }
    spent = sum(steps[0][f"{phase}_s"] for phase in ("data", "forward", "backward", "sync"))
    assert 0 < spent < steps[0]["step_s"]
    (facts,) = (run_dir / "environment").iterdir()
    assert read_json(facts)["packages"]["torch"] and read_json(facts)["interfaces"]
    assert read_json(run_dir / "exits" / "rank_00000.json")["cause"] == "done"


def test_by_hand_on_three_nodes_equals_single(single, logs):
    port = free_port()
    more = flags(logs, "hand", "--sync", "gather_scatter", "--split", "5,0,2")
    ended = finish([start_by_hand(rank, 3, port, *more) for rank in (1, 2, 0)])
    assert [code for code, *_ in ended] == [0, 0, 0], ended
    assert ended[0][1] == "" and "step 5" in ended[2][1]  # only rank 0 prints
    want, got = read_json(single[1] / "summary.json"), read_json(logs / "hand" / "summary.json")
    assert got["first_losses"] == pytest.approx(want["first_losses"], abs=1e-6)
    assert got["accuracy"] == want["accuracy"]
    ranks = [records(logs / "hand", rank, "step") for rank in range(3)]
    for of_all in zip(*ranks, strict=True):
        assert len({record["loss"] for record in of_all}) == 1
        assert len({record["grad_norm"] for record in of_all}) == 1
        assert sum(record["local_samples"] for record in of_all) == of_all[0]["samples"]
    assert ranks[1][0]["local_samples"] == 0


@pytest.mark.slow
def test_accelerate_launch_starts_as_many_workers_as_it_was_told(single, logs):
    launch = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--main_process_port", str(free_port()), "-m", "train.worker"]
    more = ("--sync", "accelerate", "--local-batch-size", "32")
    (ended,) = finish([start([*launch, *flags(logs, "accelerate", *more)])])
    assert ended[0] == 0, ended[2]
    got = read_json(logs / "accelerate" / "summary.json")
    assert got["world_size"] == 2
    want = read_json(single[1] / "summary.json")
    assert got["first_losses"] == pytest.approx(want["first_losses"], abs=1e-6)


def test_a_run_folder_in_use_is_refused_and_left_alone(single, logs):
    before = (single[1] / "summary.json").read_bytes()
    (ended,) = finish([start(["-m", "train.worker", *flags(logs, "single", "--sync", "single")])])
    assert ended[0] == 2
    assert ended[2].startswith("error: run folder") and "--overwrite" in ended[2]
    assert ended[2].count("error: ") == 1
    assert (single[1] / "summary.json").read_bytes() == before


@pytest.mark.slow
def test_a_config_file_repeats_a_run_exactly(single, logs):
    again = ["--config", str(single[1] / "config.yaml"), "--run-id", "again", "-q"]
    again.append("--no-save-model")
    (ended,) = finish([start(["-m", "train.worker", *again])])
    assert ended[0] == 0 and ended[1] == "", ended
    assert losses(logs / "again") == losses(single[1])
    assert (single[1] / "model").exists() and not (logs / "again" / "model").exists()


@pytest.mark.slow
def test_a_loss_that_is_no_number_stops_all_ranks(logs):
    port = free_port()
    more = flags(logs, "nan", "--sync", "all_reduce", "--optimizer", "sgd", "--lr", "1e30")
    more += ["--max-grad-norm", "0"]
    ended = finish([start_by_hand(rank, 2, port, *more) for rank in range(2)])
    for code, _, err in ended:
        assert code == 1
        (line,) = (line for line in errors_of(err) if not line.startswith("tip: "))
        assert re.match(r"error: step \d+: the (loss on rank 0, 1|gradient's norm) is ", line)
    assert read_json(logs / "nan" / "exits" / "rank_00001.json")["cause"] == "refused"


def test_a_new_head_is_refused_by_a_task_without_one(logs):
    (ended,) = finish([start(["-m", "train.worker", *flags(logs, "head", "--new-head")])])
    assert ended[:2] == (2, "") and ended[2].startswith("error: --new-head: --task synthetic ")


def test_rank_0_names_a_missing_tracker_before_it_meets_others(monkeypatch):
    monkeypatch.setattr(worker, "find_spec", lambda _: None)
    config = TrainConfig(task="synthetic", log_with=("wandb",))
    with pytest.raises(UsageError, match=r"^--log-with wandb: \S+ has no wandb; "):
        worker._train(config, World(), None)


def test_single_with_two_workers_is_refused(logs):
    (ended,) = finish([start_by_hand(0, 2, free_port(), *flags(logs, "refused", "--sync=single"))])
    assert ended[0] == 2 and ended[2].count("error: ") == 1
    assert "single runs one process, but world_size is 2\ntip: " in ended[2]
    assert not (logs / "refused").exists()
