"""No given setting is ignored: one that has no effect in a run is refused, whatever its value."""

import socket
from pathlib import Path

import pytest

from configs import cli
from configs.settings.launch import RunConfig
from launch.launchers.base import checked_launcher, launcher_of
from launch.programs.command_line import CommandLine
from launch.programs.own_program import program_of
from launch.spec import WorkersPython
from tests.commands import refusal

OWN = ["--launcher", "local"]
PROGRAM = ["--", "train.py", "--lr", "1"]


def problems(*argv: str) -> list[str]:
    return refusal(lambda: launcher_of(CommandLine.parse(argv))).splitlines()


def test_setting_of_any_run_is_taken_beside_a_program(tmp_path):
    words = ["--run-id", "a", "--overwrite", "--quiet", "--logs-dir", str(tmp_path)]
    line = CommandLine.parse([*OWN, *words, *PROGRAM])
    assert line.run == RunConfig(run_id="a", overwrite=True, quiet=True, logs_dir=tmp_path)
    assert line.train is None and line.bench is None


def test_requirements_of_nodes_are_those_of_their_workers(tmp_path, monkeypatch):
    def workers_python(*words: str) -> WorkersPython:
        return CommandLine.parse([*OWN, *words]).workers_python

    monkeypatch.chdir(tmp_path)
    assert workers_python() == WorkersPython(("torch", "transformers"))
    assert workers_python("--python", "env/bin/python").python == f"{tmp_path}/env/bin/python"
    assert workers_python("--python=~/env/bin/python").python == f"{Path.home()}/env/bin/python"
    assert workers_python(*PROGRAM) == WorkersPython(("torch",), is_chosen_here=True)
    assert workers_python("--python", "/env/python", *PROGRAM) == WorkersPython(
        ("torch",), "/env/python"
    )
    assert workers_python("--workers", "manual", *PROGRAM).packages == ()
    brings = (["--wrap", "nice"], ["--prologue", __file__], ["--container", "x.sif"])
    for words in (*brings, ["--python", "env/bin/python"]):
        assert workers_python(*words, *PROGRAM) == WorkersPython(())


def test_settings_of_the_bench_are_for_the_bench():
    line = CommandLine.parse([*OWN, "--program", "bench_collectives", "--operations", "gather"])
    assert line.bench.operations == "gather"


def test_settings_of_training_are_not_for_the_bench(tmp_path):
    bench = [*OWN, "--program", "bench_collectives"]
    lines = problems(*bench, "--lr", "1e-3", "--task", "quickstart")
    assert [line.split()[0] for line in lines] == ["--lr", "--task"]
    path = tmp_path / "run.yaml"  # the config of a run whose network is to be measured
    path.write_text("nodes: 2\nlr: 1e-2\n")
    heeded = ["--backend", "gloo", "--threads", "1", "--timeout-s", "9", "--quiet"]
    line = CommandLine.parse([*bench, "--config", str(path), *heeded])
    program = program_of(line.launch, line.train, line.bench)
    flags = {"--backend=gloo", "--threads=1", "--timeout-s=9.0", "--quiet=true"}
    assert {word for word in program.argv if word.startswith("--")} == flags


def test_bench_of_a_study_gets_only_flags_that_it_heeds():
    words = ["--launcher=local", "--lr", "1", "--task=mnist", "--no-length-balance", "-N", "2",
             "--threads=1", "--slurm=a=b", "--quiet"]  # fmt: skip
    assert cli.for_bench(words) == [
        "--launcher=local", "--nodes=2", "--threads=1", "--slurm=a=b", "--quiet=true"
    ]  # fmt: skip


def test_config_of_earlier_run_is_accepted_and_repeats_that_run(tmp_path):
    path = tmp_path / "config.yaml"
    line = CommandLine.parse([*OWN, "--epochs", "2"])
    settings = (line.train, line.launch, line.ssh, line.slurm, line.bench)
    path.write_text(cli.to_yaml(*settings))
    again = CommandLine.parse(["--config", str(path)])
    assert launcher_of(again).name == "local" and again.train == line.train
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("partition: null", "partition: gpu"))
    (found,) = problems("--config", str(other))
    assert "other.yaml" in found and "partition" in found


def all_lines(*argv: str) -> list[str]:
    """Return all problems of a command that are found before any machine is contacted."""
    line, problems = CommandLine.read(argv)
    checked_launcher(line, problems)
    return problems


@pytest.mark.parametrize(
    "more", [["--env", "PATH=/x"], ["--wrap", "env"], ["--container", "x.sif"]]
)
def test_a_python_that_the_workers_alone_may_find_is_not_refused(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert all_lines(*OWN, "--python", "nopython", *more, "--", "train.py") == []


def test_missing_input_of_the_trainer_is_refused_where_known(tmp_path):
    words = ["--resume", "nofile", "--data-dir", "/nope", "--model", "./mine", "--tokenizer", "ber"]
    lines = all_lines(*OWN, *words)
    assert [line.split()[0] for line in lines] == ["--data-dir", "--resume", "--model"]
    assert all_lines("--launcher", "ssh", "--hosts", "a", *words) == []  # a node may have them
    at_slurm = all_lines("--launcher", "slurm", *words)  # where a job starts in this folder
    assert [line.split()[0] for line in at_slurm] == ["--resume", "--model"]
    assert all_lines(*OWN, *words, "--dry-run") == []
    here = ["--resume", "auto", "--data-dir", str(tmp_path), "--model", str(tmp_path)]
    assert all_lines(*OWN, *here) == []
    assert all_lines(*OWN, "--resume", "configs/../train") == []  # workers start in the checkout
    assert all_lines(*OWN, "--task", "cs744", "--data-dir", "generated") == []  # made, not read


def test_port_in_use_and_missing_gpus_are_refused_together(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = str(server.getsockname()[1])
        words = ["--nproc-per-node", "gpu", "--master-port", port, "--", "true"]
        lines = all_lines(*OWN, *words)
    assert [line.split()[0] for line in lines] == ["--nproc-per-node", "--master-port"]


@pytest.mark.parametrize(
    "words",
    [["--task", "quickstart"], ["--sync", "ddp"], ["--quiet"], ["--program", "worker"], PROGRAM],
)
def test_a_line_names_the_trainer_where_nothing_asks_for_it(words):
    assert CommandLine.parse([*OWN, *words]).trainer_note == ""
    line = CommandLine.parse([*OWN, "--nodes", "2"])
    assert "quickstart" in line.trainer_note
