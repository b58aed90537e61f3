"""--help shows each flag's spelling, possible values and default."""

import re
import shlex

import pytest

from configs import plugins
from configs.help_page import parser_of
from configs.settings.launch import WorkersPerNode
from configs.settings.remote import DEFAULT_TIME, SbatchOption
from configs.settings.train import ByHand, TrainConfig
from launch.programs.command_line import CLASSES, DEFAULTS, setting_names
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import interpreter

COMMAND = str(CHECKOUT / "muster" / "command.py")


def lines_of(text: str) -> dict[str, str]:
    """Return each flag's own text as one line, by the flag's first spelling."""
    parts = [part.partition("\n\n")[0] for part in re.split(r"\n  (?=-)", text)]
    return {part.split()[0].rstrip(","): " ".join(part.split()) for part in parts[1:]}


def page(*classes, prog="muster run", shown=None):
    values = {**DEFAULTS, **dict.fromkeys(setting_names(ByHand))}
    return parser_of(classes, values, prog, "", setting_names(*classes) if shown is None else shown)


def shown(*words: str) -> str:
    done = call(interpreter(for_workers=False), *words, cwd=CHECKOUT, env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        ([COMMAND, "run", "-h"], "muster run [--flag VALUE ...] [-- PROGRAM [ARGUMENT ...]]"),
        ([COMMAND, "help", "run"], "muster run [--flag VALUE ...] [-- PROGRAM [ARGUMENT ...]]"),
        ([COMMAND, "jobs", "--help"], "muster jobs [-h]"),
        ([COMMAND, "help", "jobs", "cancel"], "muster jobs cancel [-h]"),
        ([COMMAND, "study", "--help"], "muster study [flags] FILE"),
        ([COMMAND, "doctor", "--help"], "muster doctor [--flag VALUE ...]"),
        ([COMMAND, "testbed", "up", "--help"], "muster testbed up [-h]"),
        ([COMMAND, "report", "--help"], "muster report [-h]"),
        (["launch/jobs.py", "--help"], "python launch/jobs.py [-h]"),
        (["launch/submit.py", "--help"], "python launch/submit.py [--flag VALUE ...]"),
        (["-m", "train.report", "--help"], "python -m train.report [-h]"),
    ],
    ids=shlex.join,
)
def test_the_usage_line_is_what_was_typed(words, usage):
    assert shown(*words).startswith(f"usage: {usage}")


def test_known_values_are_shown():
    text = page(*CLASSES).format_help()
    flags = lines_of(text)
    assert "--launcher {auto,local,slurm,ssh} " in flags["--launcher"]
    assert "--workers {accelerate,manual,preload,torchrun} " in flags["--workers"]
    assert "--compress {none,bf16,fp16,powersgd} " in flags["--compress"]
    for flag, package in (("--sync", "train.sync.modes"), ("--task", "train.tasks")):
        assert f": {', '.join(plugins.names(package))} (default" in flags[flag]


def test_every_switch_and_the_limit_of_time_show_their_default():
    flags = lines_of(page(*CLASSES).format_help())
    switches = [text for flag, text in flags.items() if f", --no-{flag[2:]}" in text]
    assert len(switches) > 15 and all(re.search(r"\(default: (on|off)\)$", it) for it in switches)
    assert flags["--snapshot"].endswith("(default: on)")
    assert flags["--time"].endswith(f"(default: {DEFAULT_TIME} minutes)")
    assert flags["--stop-grace-s"].startswith("--stop-grace-s SECONDS")
    assert flags["--stop-grace-s"].endswith("(default: 60)")


def test_a_default_of_a_file_may_have_a_percent_sign():
    values = {**DEFAULTS, "model": "a%s", "logs_dir": "%(d)s"}
    text = parser_of(CLASSES, values, "muster run", "", {"model", "logs_dir"}).format_help()
    assert "(default: a%s)" in text and "(default: %(d)s)" in text


def test_a_default_of_several_values_is_shown_as_it_is_typed():
    """A cluster in muster.toml may set such a default."""
    counts = (WorkersPerNode(2), WorkersPerNode(None))
    options = (SbatchOption("mail-type", "END"), SbatchOption("exclusive"))
    values = {**DEFAULTS, "nproc_per_node": counts, "slurm": options}
    text = parser_of(CLASSES, values, "muster run", "", {"nproc_per_node", "slurm"}).format_help()
    flags = lines_of(text)
    assert flags["--nproc-per-node"].endswith("(default: 2,gpu)")
    assert flags["--slurm"].endswith("(default: mail-type=END exclusive)")


def test_help_lists_each_flag():
    flags = lines_of(page(*CLASSES, shown=["nodes"]).format_help())
    assert {"--help-all", "--config", "--nodes", "--login", "--login-dir"} <= flags.keys()
    assert "\n  -- PROGRAM  " in page(*CLASSES).format_help()
    assert "--login" not in page(*CLASSES, prog="python launch/submit.py").format_help()
    assert "--help-all" not in page(*CLASSES).format_help()


def test_a_worker_s_help_is_in_groups_with_the_task_first():
    text = page(TrainConfig, ByHand, prog="python -m train.worker").format_help()
    groups = re.findall(r"^([A-Z].+):$", text, re.MULTILINE)
    assert len(groups) == 9 and groups[0].startswith("What is trained")
    assert text.index("--task") < text.index("--lr ") < text.index("--run-id")
    assert "--world-size, --num-nodes INTEGER" in text and "--rank, --local-rank INTEGER" in text
    assert "--redirect" not in text


@pytest.mark.parametrize("command", ["jobs", "testbed"])
def test_the_help_of_each_verb_says_what_it_does(command):
    text = shown(COMMAND, command, "--help")
    verb, about = re.search(r"^    (status) +(.+)$", text, re.MULTILINE).groups()
    words = " ".join(shown(COMMAND, command, verb, "--help").split())
    assert f"{about[0].upper()}{about[1:]}." in words


def test_help_of_a_score_has_what_is_of_use_without_training():
    text = shown("-m", "train.score", "--help")
    assert "--eval-batch-size" in text and "--predict" in text and "--lr" not in text
    assert "--lr" in shown("-m", "train.score", "--help-all")


def test_settings_are_shown_as_flags_take_them():
    text = shown(COMMAND, "config", "--no-snapshot")
    assert "on_hang: warn  (default)\n" in text and "snapshot: off  (the command line)\n" in text
    assert f"time: {DEFAULT_TIME}  (default)\n" in text
