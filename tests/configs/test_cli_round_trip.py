"""A configuration that is written as flags or as YAML is read back unchanged."""

import dataclasses
import re
import string
import typing
from pathlib import Path

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from configs import cli, plugins
from configs.raw import read_file
from configs.settings.launch import LaunchConfig, NodeCount
from configs.settings.train import TrainConfig
from muster.errors import UsageError
from tests.configs.made import train_config


def text_like(alphabet: str = string.printable) -> st.SearchStrategy[str]:
    words = st.text(alphabet + "äß漢", min_size=1)
    return words.filter(lambda word: word != "null" and word.isprintable())


def values(item: dataclasses.Field[typing.Any]) -> st.SearchStrategy[typing.Any]:
    """Draw valid values of one field of TrainConfig."""
    shares = st.floats(0, 1, exclude_max=True)
    special = {
        "compress": st.just("none"),
        "precision": st.sampled_from(["fp32", "bf16", "fp64"]),
        "split": st.sampled_from(["even", "auto", "3,1,0,4", "1", "0.25,1e-3"]),
        "run_id": st.none() | st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+=-]*", fullmatch=True),
        "checkpoint_every": st.sampled_from(["never", "epoch", "7", "2.5min"]),
        **dict.fromkeys(("reset_optimizer", "reset_lr_scheduler", "reset_data"), st.just(False)),
        "lr": st.floats(1, exclude_min=True, allow_infinity=False),
        "end_lr": st.floats(0, 5e-5),
        "warmup_steps": st.integers(0, 10),
        "schedule_steps": st.none() | st.integers(10),
        "device": st.sampled_from(["auto", "cuda"]),
        "seed": st.integers(0, 2**63 - 1),
        "log_with": st.none() | st.permutations(["tensorboard", "wandb"]).map(tuple),
        "keep_best": st.none() | st.sampled_from(["accuracy", "perplexity", "own:min", "own:max"]),
    }
    if item.name in special:
        return special[item.name]
    if "files" in item.metadata:
        return st.sampled_from(plugins.names(item.metadata["files"]))
    if typing.get_origin(item.type) is typing.Literal:
        return st.sampled_from(typing.get_args(item.type))
    kind = next(iter(typing.get_args(item.type)), item.type)
    plain = {
        bool: st.booleans(),
        int: st.integers(1),
        float: st.floats(0, exclude_min=True, allow_infinity=False),
        str: text_like(),
        Path: text_like().filter(lambda word: not word.startswith("~")).map(Path),
    }[kind]
    plain = shares if "share" in item.metadata else plain
    return st.none() | plain if type(None) in typing.get_args(item.type) else plain


def valid_config(chosen: dict[str, typing.Any]) -> TrainConfig:
    try:
        return TrainConfig(**chosen)
    except UsageError as error:  # each value is valid, but not their combination
        assert re.search("does not work with|exclude each other|--keep-best", str(error))
        reject()


VALUES = {item.name: values(item) for item in dataclasses.fields(TrainConfig)}
CONFIGS = st.fixed_dictionaries({}, optional=VALUES).map(valid_config)


@settings(max_examples=25, deadline=None)
@given(CONFIGS)
def test_argv_makes_the_same_configuration(config):
    assert train_config(*cli.to_argv(config)) == config


@settings(max_examples=25, deadline=None)
@given(CONFIGS)
def test_yaml_round_trip_loses_only_settings_of_one_run(tmp_path_factory, config):
    path = tmp_path_factory.getbasetemp() / "again.yaml"
    launch = LaunchConfig(nodes=NodeCount(3, 3), dry_run=True)
    path.write_text(cli.to_yaml(config, launch), encoding="utf-8")
    read_file.cache_clear()
    of_one_run = {"run_id": None, "overwrite": False, "redirect": False}
    assert train_config("--config", str(path)) == dataclasses.replace(config, **of_one_run)
    (again,) = cli.parse([LaunchConfig], ["--config", str(path)], prog="", description="")
    assert again == dataclasses.replace(launch, dry_run=False)


def test_argv_names_only_what_differs_from_the_recipe():
    recipe = train_config()
    assert cli.to_argv(recipe) == ["--task=quickstart"]
    changed = dataclasses.replace(recipe, lr=0.5, quiet=True, max_steps=None)
    assert cli.to_argv(changed) == ["--task=quickstart", "--lr=0.5", "--quiet"]
