"""Flags, files and defaults make up one configuration; all errors are reported together."""

import re
from pathlib import Path

import pytest
import yaml

from configs import cli, plugins, raw
from configs.help_page import Parser
from configs.settings.launch import LaunchConfig, NodeCount, ProgramConfig
from configs.settings.train import ByHand, TrainConfig
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from tests.configs import odd_values
from tests.configs.made import train_config
from tests.fuzzing import fuzzed


def problems(*argv: str, classes: tuple[type, ...] = (TrainConfig,)) -> list[str]:
    with pytest.raises(UsageError) as caught:
        cli.parse(classes, argv, prog="train", description="")
    return str(caught.value).splitlines()


@pytest.fixture
def write(tmp_path, read_again):
    def write(text: str) -> str:
        read_again()
        path = tmp_path / "run.yaml"
        path.write_text(text)
        return str(path)

    return write


# precedence


def test_flags_override_the_file_which_overrides_the_defaults(write):
    path = write("lr: 1e-4\nsync: all_reduce\nquiet: true\nmodel: bert\n")
    config = train_config("--config", path)
    assert (config.lr, config.sync, config.epochs) == (1e-4, "all_reduce", TrainConfig().epochs)
    assert train_config("--lr=0.5", "--config", path).lr == 0.5
    config = train_config("--config", path, "--lr=1", "--lr", "2", "--no-quiet", "--model=null")
    assert (config.lr, config.quiet, config.model) == (2.0, False, None)


def test_without_a_config_the_recipe_of_the_task_is_read(tmp_path, monkeypatch):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text("lr: 0.25\nepochs: 7\n")
    (tmp_path / "configs" / "synthetic.yaml").write_text("lr: 0.75\n")
    (tmp_path / "train").symlink_to(CHECKOUT / "train")
    monkeypatch.setattr(cli, "CHECKOUT", tmp_path)
    monkeypatch.setattr(plugins, "CHECKOUT", tmp_path)
    assert (train_config().lr, train_config().epochs) == (0.25, 7)
    assert train_config("--epochs=1").epochs == 1
    assert train_config("--task", "quickstart", "--task=synthetic").lr == 0.75
    (tmp_path / "empty.yaml").touch()
    assert train_config(f"--config={tmp_path / 'empty.yaml'}").lr == TrainConfig().lr


def test_each_value_has_its_origin(write, tmp_path, monkeypatch):
    path = write("nodes: 2\nlr: 1e-4\nepochs: 7\n")
    (tmp_path / "muster.toml").write_text("[clusters.hpc]\nnodes = 4\n")
    monkeypatch.chdir(tmp_path)
    words = ["--config", path, "--on", "hpc", "--lr=0.5", "--task", "rte"]
    parsed = cli.parsed((LaunchConfig, TrainConfig), words, prog="", description="")
    origin = {name: (given.source, given.where) for name, given in parsed.origin.items()}
    assert origin["nodes"] == ("cluster", f"{tmp_path / 'muster.toml'}:2: ")
    assert origin["epochs"] == ("file", f"{path}:3: ")
    assert origin["lr"] == ("command line", "") and "sync" not in origin
    assert [parsed.values[name] for name in ("lr", "epochs", "nodes")] == [0.5, 7, NodeCount(4, 4)]
    assert {given.name for given in parsed.explicit} == {"config", "on", "lr", "task", "epochs"}
    parsed = cli.parsed([TrainConfig], ["--task", "rte"], prog="", description="")
    assert {given.source for given in parsed.origin.values()} == {"recipe", "command line"}
    assert [given.name for given in parsed.explicit] == ["task"]


# spelling


@pytest.mark.parametrize("name", ["batch-size", "batch_size"])
def test_dashes_equal_underscores_in_flags_and_files(write, name):
    assert train_config(f"--{name}=8").batch_size == 8
    assert train_config("--config", write(f"{name}: 8")).batch_size == 8


@pytest.mark.parametrize("word", ["--no-quiet", "--no_quiet", "--quiet=false", "--quiet=no"])
def test_a_switch_can_be_turned_off(write, word):
    assert train_config("--config", write("quiet: yes"), word).quiet is False


def test_second_name_of_a_flag_is_the_flag():
    (launch,) = cli.parse([LaunchConfig], ["-N", "4"], prog="", description="")
    assert launch.nodes == NodeCount(4, 4)
    argv = ["--num_nodes=4", "--local_rank", "1", "--master_ip=10.0.0.1"]
    (by_hand,) = cli.parse([ByHand], argv, prog="", description="")
    assert by_hand == ByHand(world_size=4, rank=1, master_ip="10.0.0.1")
    assert train_config("-q").quiet is True


@pytest.mark.parametrize("value", ["-1e-4", "-1", "-.5"])
def test_a_negative_number_is_a_value_and_no_flag(value):
    got = float(value)
    assert problems("--lr", value)[0].endswith(f"(got {got})")
    assert cli.parse([ByHand], ["--rank", "-1"], prog="", description="")[0].rank == -1


@pytest.mark.parametrize("text", ["1e-4", "0.0001", "1.0e-4", "1E-4"])
def test_floats_are_floats_in_flags_and_files(write, text):
    assert train_config(f"--lr={text}").lr == 1e-4
    assert train_config("--config", write(f"lr: {text}")).lr == 1e-4


@pytest.mark.parametrize("text", ["yes", "no", "5", "010", "1e5", "2026-11-21", "a: b", "[1]"])
def test_text_stays_as_it_was_written(write, text):
    assert train_config(f"--model={text}").model == text
    assert train_config("--config", write(f"model: '{text}'")).model == text
    if text in ("yes", "no"):  # booleans in YAML, but here they name a choice
        assert train_config("--config", write(f"lower_case: {text}")).lower_case == text


def test_a_path_may_begin_with_the_home_folder(write):
    assert train_config("--logs-dir=~/runs").logs_dir == Path.home() / "runs"
    assert train_config("--config", write("cache_dir: ~/runs")).cache_dir == Path.home() / "runs"


def test_home_folder_is_expanded_wherever_a_path_is_taken(write, tmp_path, monkeypatch):
    words = ["--python=~/env/bin/python", "--container=~/image.sif", "--container-mounts=~/a,~/b"]
    words += ["--hosts=~/hosts.txt", "--send=~/data:~/data"]
    program, launch = cli.parse((ProgramConfig, LaunchConfig), words, prog="", description="")
    home = str(Path.home())
    assert (program.python, program.container) == (f"{home}/env/bin/python", f"{home}/image.sif")
    assert program.container_mounts == (f"{home}/a", f"{home}/b")
    # the second path of --send is on the nodes, where the home folder may differ
    assert (launch.hosts, str(launch.send)) == (f"{home}/hosts.txt", f"{home}/data:~/data")
    parser = Parser()
    parser.add_argument("--logs-dir", type=Path)
    assert parser.parse_args(["--logs-dir=~/runs"]).logs_dir == Path.home() / "runs"
    path = write("lr: 0.25")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert train_config(f"--config=~/{Path(path).name}").lr == 0.25


@pytest.mark.usefixtures("no_home")
def test_a_home_folder_that_is_not_known_is_one_line(write):
    for path in ("~/runs", "~no-such-user/runs"):
        (line,) = problems(f"--logs-dir={path}")
        assert "logs-dir" in line and path in line
        (line,) = problems("--config", write(f"cache_dir: {path}"))
        assert "cache_dir" in line and path in line


# refused settings


def test_no_flag_that_deletes_files_is_suggested():
    assert raw.alike("--overwrit", ["--nodes", "--overwrite"]) == ""


def test_flags_that_differ_in_a_digit_are_two():
    lines = problems("--adam-beta1=x", "--adam-beta2=3", "--seed=-1")
    assert [line.split()[0].rstrip(":") for line in lines] == [
        "--adam-beta1", "--seed", "--adam-beta2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words",
    [
        ["--lr=x", "--end-lr=3"],  # above the default of --lr
        ["--sync=al_reduce", "--compress=bf16"],  # not in any mode
        ["--max-restart=3", "--on-hang=restart"],  # needs --max-restarts
    ],
)
def test_problem_that_follows_from_another_is_not_named(words):
    classes = (LaunchConfig, TrainConfig)
    (line,) = problems(*words, classes=classes)
    assert line.startswith((f"{words[0].partition('=')[0]}: ", "unknown flag --max-restart; "))


# --help


def test_help_ignores_wrong_flags_and_shows_values_of_config_file(write, capsys):
    path = write("batch_size: 12345")
    for words in (["-h"], ["--help"], ["--foo", "--epochs=x", "--help-all"]):
        with pytest.raises(SystemExit) as ended:
            train_config("--config", path, *words)
        assert ended.value.code == 0
    assert re.search(r"--batch-size INTEGER.*?\(default:\s+12345\)", capsys.readouterr().out, re.S)


def test_later_of_batch_size_and_local_batch_size_wins(write):
    of_each = ["--config", write("local_batch_size: 16")]
    assert train_config(*of_each).on(4).batch_size == 64
    config = train_config(*of_each, "--batch-size", "128")
    assert (config.batch_size, config.local_batch_size) == (128, None)
    config = train_config("--task", "emotion", "--local-batch-size", "16")  # emotion.yaml has 256
    assert config.on(3).batch_size == 48 and config.on(3).local_batch_size is None
    assert "\nbatch_size" not in cli.to_yaml(config)


DUMPED = odd_values.settings(sorted(cli.FILE_KEYS)).map(yaml.safe_dump)
PARTS = [
    "lr: ",
    "nodes: ",
    "\n",
    "- ",
    "[",
    "{",
    "&a ",
    "*a",
    "!!int ",
    "!x",
    "? ",
    "|\n ",
    "%",
    "'",
]
WRITTEN = odd_values.written(PARTS)


@fuzzed(DUMPED | WRITTEN, examples=25)
def test_random_yaml_is_settings_or_refused_by_name(tmp_path_factory, read_again, text):
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(text, encoding="utf-8")
    read_again()
    try:
        cli.parse(cli.FILE_CLASSES, ["--config", str(path)], prog="x", description="")
    except UsageError as error:
        assert all(str(path) in line or "--" in line for line in str(error).splitlines())


def test_file_of_many_dashes_is_refused_in_one_line(write):
    (problem,) = problems("--config", write("- " * 20_000))
    assert "run.yaml: " in problem


def test_yaml_with_bom_and_crlf_is_read(tmp_path):
    path = tmp_path / "dos.yaml"
    path.write_bytes(b"\xef\xbb\xbflr: 0.5\r\nsync: all_reduce\r\n")
    config = train_config("--config", str(path))
    assert (config.lr, config.sync) == (0.5, "all_reduce")
