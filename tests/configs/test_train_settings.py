import dataclasses

import pytest

from configs.settings.launch import LaunchConfig
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError

TRAIN_PROBLEMS = [
    (
        {"sync": "magic"},
        (
            "--sync: unknown 'magic'; "
            "known: accelerate, all_reduce, ddp, fsdp, gather_scatter, local_sgd, single, zero1"
        ),
    ),
    ({"batch_size": 0}, "--batch-size must be at least 1 (got 0)"),
    ({"eval_batch_size": 0}, "--eval-batch-size must be at least 1 (got 0)"),
    ({"accumulation": 0}, "--accumulation must be at least 1 (got 0)"),
    ({"max_seq_length": 0}, "--max-seq-length must be at least 1 (got 0)"),
    ({"max_steps": 0}, "--max-steps must be at least 1 (got 0)"),
    ({"schedule_steps": 0}, "--schedule-steps must be at least 1 (got 0)"),
    ({"threads": 0}, "--threads must be at least 1 (got 0)"),
    ({"epochs": -1}, "--epochs must be at least 0 (got -1)"),
    ({"warmup_steps": -1}, "--warmup-steps must be at least 0 (got -1)"),
    ({"data_workers": -1}, "--data-workers must be at least 0 (got -1)"),
    ({"seed": -1}, "--seed must be at least 0 (got -1)"),
    ({"seed": 2**63}, f"--seed must be below 2**63 (got {2**63})"),
    ({"bucket_mb": -1.0}, "--bucket-mb must be at least 0 (got -1.0)"),
    ({"bucket_mb": float("nan")}, "--bucket-mb must be at least 0 (got nan)"),
    ({"weight_decay": -0.1}, "--weight-decay must be at least 0 (got -0.1)"),
    ({"max_grad_norm": float("inf")}, "--max-grad-norm must be at least 0 (got inf)"),
    ({"lr": 0.0}, "--lr must be a finite number above 0 (got 0.0)"),
    ({"lr": float("nan")}, "--lr must be a finite number above 0 (got nan)"),
    ({"adam_eps": 0.0}, "--adam-eps must be a finite number above 0 (got 0.0)"),
    ({"timeout_s": float("inf")}, "--timeout-s must be a finite number above 0 (got inf)"),
    ({"adam_beta2": 1.0}, "--adam-beta2 must be at least 0 and below 1 (got 1.0)"),
    ({"end_lr": 1.0}, "--end-lr 1.0 is above --lr 5e-05"),
    ({"keep_last": 0}, "--keep-last must be at least 1 (got 0)"),
    (
        {"checkpoint_every": "0"},
        "--checkpoint-every '0': use never, a number of steps, epoch, or minutes such as 10min",
    ),
    (
        {"checkpoint_every": "nanmin"},
        "--checkpoint-every 'nanmin': use never, a number of steps, epoch, or minutes such as 10min",  # noqa: E501
    ),
    (
        {"reset_data": True},
        "--reset-data changes how a run is resumed; give --resume as well",
    ),
    ({"dropout": 1.0}, "--dropout must be at least 0 and below 1 (got 1.0)"),
    ({"dropout": -0.1}, "--dropout must be at least 0 and below 1 (got -0.1)"),
    (
        {"warmup_steps": 5, "schedule_steps": 3},
        "--warmup-steps 5 is longer than --schedule-steps 3",
    ),
    (
        {"backend": "nccl", "device": "cpu"},
        "--backend nccl needs a GPU, but --device is cpu; use --backend gloo",
    ),
    ({"run_id": "../x"}, "--run-id '../x': use letters, digits, '.', '_', '-', '+' and '='"),
    ({"run_id": ".."}, "--run-id '..': use letters, digits, '.', '_', '-', '+' and '='"),
    ({"run_id": "-x"}, "--run-id '-x': use letters, digits, '.', '_', '-', '+' and '='"),
    ({"split": "odd"}, "--split 'odd': use even, auto, or a number per worker: 3,1,0,4"),
    ({"split": "1,,2"}, "--split '1,,2': use even, auto, or a number per worker: 3,1,0,4"),
    ({"split": "0,0"}, "--split 0,0: weights must not be negative, and one must be above 0"),
    ({"split": "3,-1"}, "--split 3,-1: weights must not be negative, and one must be above 0"),
    ({"split": "1,inf"}, "--split 1,inf: weights must not be negative, and one must be above 0"),
]


@pytest.mark.parametrize(("setting", "line"), TRAIN_PROBLEMS, ids=lambda value: str(value)[:40])
def test_each_wrong_setting_is_one_line(setting, line):
    with pytest.raises(UsageError) as caught:
        TrainConfig(**setting)
    assert str(caught.value) == line


def test_an_unknown_task_lists_the_known():
    with pytest.raises(UsageError, match=r"^--task: unknown 'chess'; known: .*quickstart"):
        TrainConfig(task="chess")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ({"nodes": 0}, "--nodes must be at least 1 (got 0)"),
        ({"nproc_per_node": "0"}, "--nproc-per-node must be at least 1 (got 0)"),
        ({"master_port": 1023}, "--master-port must be between 1024 and 65535 (got 1023)"),
        ({"master_port": 65536}, "--master-port must be between 1024 and 65535 (got 65536)"),
    ],
)
def test_each_wrong_launch_setting_is_one_line(setting, line):
    with pytest.raises(UsageError) as caught:
        LaunchConfig(**setting)
    assert str(caught.value) == line


def test_an_unknown_launcher_lists_the_known_and_auto():
    with pytest.raises(UsageError, match=r"^--launcher: unknown 'lsf'; known: auto, .*local"):
        LaunchConfig(launcher="lsf")


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            {"rank": 4, "world_size": 4},
            "--rank 4 is not below --world-size 4; ranks go from 0 to 3",
        ),
        ({"rank": -2}, "--rank must be 0 or more, or -1 for a single process (got -2)"),
        ({"world_size": 0}, "--world-size must be at least 1 (got 0)"),
        ({"master_port": 80}, "--master-port must be between 1024 and 65535 (got 80)"),
    ],
)
def test_each_wrong_setting_by_hand_is_one_line(setting, line):
    with pytest.raises(UsageError) as caught:
        ByHand(**setting)
    assert str(caught.value) == line


def test_all_problems_are_named_at_once():
    with pytest.raises(UsageError) as caught:
        TrainConfig(batch_size=0, lr=-1.0, dropout=2.0, sync="magic", split="x")
    assert len(str(caught.value).splitlines()) == 5


@pytest.mark.parametrize("run_id", ["a", "2026-11-21_12.00_ddp+4=x", "0"])
def test_a_run_id_is_a_file_name(run_id):
    assert TrainConfig(run_id=run_id).run_id == run_id


def test_single_runs_one_process():
    assert list(TrainConfig(sync="single").world_problems(1)) == []
    assert list(TrainConfig(sync="single").world_problems(4)) == [
        "--sync single runs one process, but world_size is 4; use --sync ddp or --nodes 1"
    ]


def test_a_split_has_one_weight_per_worker():
    config = TrainConfig(split="3,1,0")
    assert config.split_weights() == (3.0, 1.0, 0.0)
    assert list(config.world_problems(3)) == []
    assert list(config.world_problems(4)) == [
        "--split 3,1,0 has 3 weights, but world_size is 4; give one per worker"
    ]


def test_an_even_split_suits_any_number_of_workers():
    assert TrainConfig().split_weights() is None
    assert list(TrainConfig().world_problems(7)) == []


def test_configurations_are_values():
    assert TrainConfig() == TrainConfig()
    assert len({TrainConfig(), TrainConfig(), TrainConfig(seed=1)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().lr = 1.0


@pytest.mark.parametrize("cls", [TrainConfig, LaunchConfig, ByHand])
def test_every_setting_has_its_line_of_help(cls):
    for item in dataclasses.fields(cls):
        text = item.metadata["help"]
        assert text and "\n" not in text and not text.endswith("."), item.name
