"""Each wrong setting of the trainer is refused in one line, with what to give."""

import dataclasses

import pytest

from configs.settings.launch import (
    LaunchConfig,
    NodeCount,
    ProgramConfig,
    RunConfig,
    WorkersPerNode,
)
from configs.settings.train import ByHand, TrainConfig
from muster.errors import UsageError

NAME = "use letters, digits, '.', '_', '-', '+' and '='"
WEIGHTS = "weights must not be negative, and one must be above 0"
SPLIT = "use even, auto, or a number per worker: 3,1,0,4"
EVERY = "use never, a number of steps, epoch, or minutes such as 10min"
LONGER, NO_GPU = "is longer than", "needs a GPU, but --device is cpu"
UNKNOWN = "whether its lowest or its highest value is the best is not known; give"
EPOCHS = "compares the evaluations after each epoch, but --evaluate is"
EVALUATE = "give --evaluate epoch"
RANKS = "ranks go from 0 to 3"
PORT = "must be between 1024 and 65535"
POSITIVE = "must be a finite number above 0"
# Each kind of limit: settings, a value that is wrong, and what is said after the flag's name.
LIMITS = [
    (TrainConfig, "batch_size", 0, "must be at least 1"),
    (TrainConfig, "epochs", -1, "must be at least 0"),
    (TrainConfig, "seed", 2**63, "must be below 2**63"),
    (TrainConfig, "bucket_mb", float("nan"), "must be at least 0"),
    (TrainConfig, "max_grad_norm", float("inf"), "must be at least 0"),
    (TrainConfig, "lr", 0.0, POSITIVE),
    (TrainConfig, "lr", float("nan"), POSITIVE),
    (TrainConfig, "dropout", 1.0, "must be at least 0 and below 1"),
    (TrainConfig, "dropout", -0.1, "must be at least 0 and below 1"),
    (LaunchConfig, "master_port", 1023, PORT),
    (LaunchConfig, "master_port", 65536, PORT),
    (ByHand, "master_port", 80, PORT),
]
PROBLEMS = {
    TrainConfig: [
        ({"end_lr": 1.0}, "--end-lr 1.0 is above --lr 5e-05"),
        ({"checkpoint_every": "0"}, f"--checkpoint-every '0': {EVERY}"),
        ({"checkpoint_every": "nanmin"}, f"--checkpoint-every 'nanmin': {EVERY}"),
        ({"keep_best": "mine"}, f"--keep-best mine: {UNKNOWN} mine:min or mine:max"),
        ({"keep_best": "f1", "evaluate": "end"}, f"--keep-best f1 {EPOCHS} end; {EVALUATE}"),
        ({"keep_best": "f1", "epochs": 0}, "--keep-best f1 compares epochs, but --epochs is 0"),
        (
            {"patience": 2},
            "--patience 2 counts epochs without a better checkpoint; give --keep-best as well",
        ),
        ({"reset_data": True}, "--reset-data changes how a run is resumed; give --resume as well"),
        ({"warmup_steps": 5, "schedule_steps": 3}, f"--warmup-steps 5 {LONGER} --schedule-steps 3"),
        ({"backend": "nccl", "device": "cpu"}, f"--backend nccl {NO_GPU}; use --backend gloo"),
        ({"split": "1,,2"}, f"--split '1,,2': {SPLIT}"),
        ({"split": "0,0"}, f"--split 0,0: {WEIGHTS}"),
        ({"split": "3,-1"}, f"--split 3,-1: {WEIGHTS}"),
        ({"split": "1,inf"}, f"--split 1,inf: {WEIGHTS}"),
    ],
    RunConfig: [({"run_id": one}, f"--run-id '{one}': {NAME}") for one in ("../x", "..", "-x")],
    LaunchConfig: [
        ({"nodes": NodeCount(0, 0)}, "--nodes must be at least 1 (got 0)"),
        ({"nproc_per_node": (WorkersPerNode(0),)}, "--nproc-per-node must be at least 1 (got 0)"),
    ],
    ByHand: [
        ({"rank": 4, "world_size": 4}, f"--rank 4 is not below --world-size 4; {RANKS}"),
        ({"rank": -2}, "--rank must be 0 or more, or -1 for a single process (got -2)"),
    ],
}
CASES = [(cls, *case) for cls, cases in PROBLEMS.items() for case in cases]
CASES += [
    (cls, {name: value}, f"--{name.replace('_', '-')} {rule} (got {value})")
    for cls, name, value, rule in LIMITS
]


@pytest.mark.parametrize(("cls", "setting", "line"), CASES, ids=lambda value: str(value)[:40])
def test_each_wrong_setting_is_one_line(cls, setting, line):
    with pytest.raises(UsageError) as caught:
        cls(**setting)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("cls", "name", "known"),
    [
        (TrainConfig, "task", ".*quickstart"),
        (TrainConfig, "sync", "accelerate, all_reduce, ddp, .*zero1$"),
        (TrainConfig, "compress", "none, bf16, fp16, powersgd"),
        (LaunchConfig, "launcher", "auto, .*local"),
        (LaunchConfig, "workers", ".*torchrun"),
    ],
)
def test_an_unknown_file_of_a_folder_lists_the_known(cls, name, known):
    with pytest.raises(UsageError, match=f"^--{name}: unknown 'chess'; known: {known}"):
        cls(**{name: "chess"})


def test_all_problems_of_train_settings_are_named_at_once():
    with pytest.raises(UsageError) as caught:
        TrainConfig(batch_size=0, lr=-1.0, dropout=2.0, sync="magic", split="x")
    assert len(str(caught.value).splitlines()) == 5


def test_a_split_has_one_weight_per_worker():
    config = TrainConfig(split="3,1,0")
    assert config.split_weights() == (3.0, 1.0, 0.0)
    assert list(config.world_problems(3)) == []
    assert list(config.world_problems(4)) == [
        "--split 3,1,0 has 3 weights, but world_size is 4\ntip: give one per worker"
    ]
    assert TrainConfig().split_weights() is None  # an even one suits any number
    assert list(TrainConfig().world_problems(7)) == []


@pytest.mark.parametrize("cls", [TrainConfig, LaunchConfig, ProgramConfig, ByHand])
def test_every_setting_has_its_line_of_help(cls):
    for item in dataclasses.fields(cls):
        text = item.metadata["help"]
        assert text and "\n" not in text and not text.endswith("."), item.name


@pytest.mark.parametrize(
    ("keep_best", "metric", "lowest"),
    [
        ("accuracy", "accuracy", False),
        ("eval_loss_mm", "eval_loss_mm", True),
        ("perplexity", "perplexity", True),
        ("my_metric_f1", "my_metric_f1", False),
        ("accuracy:min", "accuracy", True),
        ("eval_loss:max", "eval_loss", False),
        ("mine:max", "mine", False),
    ],
)
def test_direction_of_the_best_is_known_or_given(keep_best, metric, lowest):
    assert TrainConfig(keep_best=keep_best).best() == (metric, lowest)
