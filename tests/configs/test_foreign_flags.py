"""Flags of other launchers are answered with ours, and nothing that does not exist is suggested."""

import re

import pytest

from configs import cli, foreign_flags
from configs.settings import sbatch_options
from launch.programs.command_line import CLASSES, CommandLine
from muster.command import LOGIN
from muster.errors import UsageError


def refusal(*argv: str) -> list[str]:
    with pytest.raises(UsageError) as refused:
        CommandLine.of(argv)
    return str(refused.value).splitlines()


def accepted() -> set[str]:
    """Every spelling of a flag of a run."""
    known = {"--help", "--help-all", "--config", *(f"--{cli.dashed(name)}" for name in LOGIN)}
    for cls in CLASSES:
        for item in cli.fields(cls):
            known |= {f"--{cli.dashed(item.name)}", *item.metadata.get("aliases", ())}
    return known


def test_every_flag_of_ours_that_is_named_exists():
    texts = [*foreign_flags.FLAGS, *foreign_flags.TRAINER_FLAGS.values()]
    texts += [*sbatch_options.REFUSED.values(), *foreign_flags.LAUNCHERS.values()]
    named = {flag for text in texts for flag in re.findall(r"(?<!\S)--[a-z][a-z-]*", text)}
    assert len(named) > 10 and named <= accepted()


def test_no_flag_that_is_accepted_is_called_foreign():
    names = {*foreign_flags.TEXTS, *foreign_flags.TRAINER_FLAGS}
    foreign = {f"-{name}" if len(name) == 1 else f"--{name}" for name in names}
    assert not foreign & accepted()


MEANT = [
    (["--nnodes", "2:4"], "--nnodes; use --nodes 2:4"),
    (["--nnodes=2"], "--nnodes; use --nodes 2"),
    (["--rdzv_backend", "c10d"], "--rdzv_backend; leave it out: Muster lets the nodes find"),
    (["--num_machines", "2"], "--num_machines; use --nodes 2"),
    (["--mixed_precision", "bf16"], "--mixed_precision; use --env ACCELERATE_MIXED_PRECISION=bf16"),
    (["-n", "4"], "-n; use --nodes and --nproc-per-node"),
    (["-n4"], "-n4; use --nodes and --nproc-per-node"),
    (["--num_workers", "2"], "--num_workers; use --nproc-per-node 2, or give it to the program"),
    (["--workdir", "x"], "--workdir; the program starts in the folder in which"),
    (["-help"], "-help; did you mean --help?"),
    (["-N2"], "-N2; did you mean -N 2?"),
    (["--hostfile", "h"], "--hostfile; use --hosts h"),
    (["--ntasks-per-node", "2"], "--ntasks-per-node; use --nproc-per-node 2"),
    (["--mail-type", "END"], "--mail-type; give this option of sbatch as --slurm mail-type=END"),
    (["--comment", "a b"], "--comment; give this option of sbatch as --slurm comment='a b'"),
    (["--qos", "high"], "--qos; give this option of sbatch as --slurm qos=VALUE"),
    (["-C", "a100"], "-C; use --slurm constraint=a100"),
    (["--no-preflight"], "--no-preflight; the nodes are always checked; leave it out"),
    (["--gpus-per-task", "1"], "--gpus-per-task; use --gpus-per-node"),
    (["--output", "x"], "--output; leave it out: what workers print is in the run folder"),
    (["--job-name", "x"], "--job-name; use --run-id x"),
    (["--conda", "env"], "--conda; activate it before, name its Python with --python"),
    (["--image", "x.sif"], "--image; use --container IMAGE"),
    (["--node", "4"], "--node; did you mean --nodes?"),
    (["--overwrit"], "--overwrit; see --help, or give it to the program"),
    (["--batch", "4"], "--batch; see --help, or give it to the program"),
    (["--epoch", "4"], "--epoch; see --help, or give it to the program"),
]


@pytest.mark.parametrize(("words", "message"), MEANT)
def test_an_unknown_flag_is_one_line_with_what_is_meant(words, message):
    (line,) = refusal(*words, "--", "train.py")
    assert line.startswith(f"unknown flag {message}")


def test_without_a_program_flags_of_the_trainer_are_suggested():
    assert refusal("--batch", "4") == ["unknown flag --batch; did you mean --batch-size?"]
    assert refusal("--mixed_precision", "bf16")[0].endswith("use --precision bf16")
    assert refusal("--pytohn", "x") == ["unknown flag --pytohn; did you mean --python?"]


def test_program_without_dashes_is_no_value_of_unknown_flag():
    first, second = refusal("--verbose", "train.py")
    assert first.startswith("unknown flag --verbose; ")
    assert second.endswith("a program of your own follows after --: -- train.py")


@pytest.mark.parametrize("program", ["my.py --lr 1 --foo 2", "python my.py", "bin/python3.12 a.py"])
def test_a_program_without_its_dashes_is_one_line_whatever_follows(program):
    (line,) = refusal("--nodes", "2", *program.split())
    word, behind, *_ = program.split()
    shown = word if word.endswith(".py") else f"{word} {behind}"
    assert line.startswith(f"unknown argument {word!r}; ") and line.endswith(f": -- {shown}")


@pytest.mark.parametrize("dash", "\u2013\u2014")
def test_a_long_dash_in_place_of_two_hyphens_is_one_line(dash):
    words = [f"{dash}nodes", "2", "--verbose"]
    first, second = refusal(*words, "--", "train.py")
    assert first == f"{dash}nodes: it begins with a long dash; type two hyphens: --nodes"
    assert second.startswith("unknown flag --verbose")
