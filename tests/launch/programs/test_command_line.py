"""No setting that was given is ignored: what has no use in a run is refused, whatever its value."""

import re
import socket
from pathlib import Path

import pytest

from configs import cli
from configs.settings.launch import RunConfig
from launch import submit
from launch.launchers.base import checked_launcher, launcher_of
from launch.programs.command_line import CommandLine
from launch.programs.own_program import program_of
from launch.spec import WorkersPython
from muster.errors import UsageError
from tests.commands import refused

OWN = ["--launcher", "local"]
PROGRAM = ["--", "train.py", "--lr", "1"]


def refusal(*argv: str) -> list[str]:
    with pytest.raises(UsageError) as refused:
        launcher_of(CommandLine.of(argv))
    return str(refused.value).splitlines()


TRAINERS = (
    r"is a setting of the trainer that comes with Muster.*goes after it: -- train\.py \.\.\.$"
)
OF_A_PROGRAM = [
    ["--env", "X=1"],
    ["--prologue", __file__],
    ["--wrap", "nice"],
    ["--container", "x.sif"],
    ["--snapshot"],
]
UNUSED = [
    ("local", ["--partition", "gpu"]),
    ("local", ["--slurm", "mail-type=END"]),
    ("local", ["--ssh-config", "none"]),
    ("local", ["--network", "10.0.0.0/8"]),
    ("local", ["--include", "*.pt"]),
    ("ssh", ["--hosts", "node0", "-p", "gpu"]),
    ("slurm", ["--user", "me"]),
]
USELESS = [
    # Each has the default of our trainer: it is not that of another program.
    ([*OWN, "--lr", "1e-3", *PROGRAM], f"^--lr {TRAINERS}"),
    ([*OWN, "--sync=ddp", *PROGRAM], f"^--sync {TRAINERS}"),
    ([*OWN, "--length_balance", *PROGRAM], f"^--length-balance {TRAINERS}"),
    ([*OWN, "--no-length-balance", *PROGRAM], f"^--length-balance {TRAINERS}"),
    ([*OWN, "--operations", "all", *PROGRAM], f"^--operations {TRAINERS}"),
    ([*OWN, "--operations", "all"], "^--operations is for --program bench_collectives$"),
    (
        [*OWN, "--program", "worker", *PROGRAM],
        r"^--program worker and train\.py are two programs; give one of them$",
    ),
    *(
        ([*OWN, *words], rf"^{words[0]} is for a program of your own.*-- train\.py")
        for words in OF_A_PROGRAM
    ),
    *(
        (["--launcher", name, *words, *PROGRAM], f"has no effect with --launcher {name}")
        for name, words in UNUSED
    ),
]


@pytest.mark.parametrize(("words", "message"), USELESS)
def test_setting_without_a_use_is_refused(words, message):
    (line,) = refusal(*words)
    assert re.search(message, line), line


def test_trainer_settings_of_flags_and_file_are_named_at_once(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("nodes: 2\nepochs: 3\nlr: 1e-3\n")
    lines = refusal(*OWN, "--config", str(path), "--sync", "ddp", *PROGRAM)
    starts = [line.partition(" is a setting of the trainer")[0] for line in lines]
    assert starts == [f"{path}:2: epochs", f"{path}:3: lr", "--sync"]
    line = CommandLine.of([*OWN, "--config", str(path)])
    assert (line.launch.most_nodes, line.train.epochs) == (2, 3)


def test_setting_of_any_run_is_taken_beside_a_program(tmp_path):
    words = ["--run-id", "a", "--overwrite", "--quiet", "--logs-dir", str(tmp_path)]
    line = CommandLine.of([*OWN, *words, *PROGRAM])
    assert line.run == RunConfig(run_id="a", overwrite=True, quiet=True, logs_dir=tmp_path)
    assert line.train is None and line.bench is None


def test_requirements_of_nodes_are_those_of_their_workers(tmp_path, monkeypatch):
    def asked(*words: str) -> WorkersPython:
        return CommandLine.of([*OWN, *words]).workers_python

    monkeypatch.chdir(tmp_path)
    assert asked() == WorkersPython(("torch", "transformers"))
    assert asked("--python", "env/bin/python").python == f"{tmp_path}/env/bin/python"
    assert asked("--python=~/env/bin/python").python == f"{Path.home()}/env/bin/python"
    assert asked(*PROGRAM) == WorkersPython(("torch",), is_chosen_here=True)
    assert asked("--python", "/env/python", *PROGRAM) == WorkersPython(("torch",), "/env/python")
    assert asked("--workers", "manual", *PROGRAM).packages == ()
    brings = (["--wrap", "nice"], ["--prologue", __file__], ["--container", "x.sif"])
    for words in (*brings, ["--python", "env/bin/python"]):
        assert asked(*words, *PROGRAM) == WorkersPython(())


def test_settings_of_the_bench_are_for_the_bench():
    line = CommandLine.of([*OWN, "--program", "bench_collectives", "--operations", "gather"])
    assert line.bench.operations == "gather"


def test_settings_of_training_are_not_for_the_bench(tmp_path):
    bench = [*OWN, "--program", "bench_collectives"]
    lines = refusal(*bench, "--lr", "1e-3", "--task", "quickstart")
    assert [line.split()[0] for line in lines] == ["--lr", "--task"]
    assert "is for training, not for --program bench_collectives" in lines[0]
    path = tmp_path / "run.yaml"  # of a run, whose network is to be measured
    path.write_text("nodes: 2\nlr: 1e-2\n")
    heeded = ["--backend", "gloo", "--threads", "1", "--timeout-s", "9", "--quiet"]
    line = CommandLine.of([*bench, "--config", str(path), *heeded])
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
    line = CommandLine.of([*OWN, "--epochs", "2"])
    settings = (line.train, line.launch, line.ssh, line.slurm, line.bench)
    path.write_text(cli.to_yaml(*settings))
    again = CommandLine.of(["--config", str(path)])
    assert launcher_of(again).name == "local" and again.train == line.train
    other = tmp_path / "other.yaml"
    other.write_text(path.read_text().replace("partition: null", "partition: gpu"))
    (found,) = refusal("--config", str(other))
    assert "partition has no effect with --launcher local" in found


def all_lines(*argv: str) -> list[str]:
    """Every problem of a call, before any machine is asked."""
    line, problems = CommandLine.read(argv)
    checked_launcher(line, problems)
    return problems


def test_all_problems_of_a_command_line_are_named_at_once(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    words = ["--nodes=0", "--port-range=x", "--max-restarts=y", "--run-id=a/b", "--partition=gpu"]
    lines = all_lines(*OWN, *words, "--env=RANK=1", "--lr=x", "--nods=2", "--", "tain.py")
    starts = "--lr is a|unknown flag --nods|--port-range 'x'|--max-restarts: exp|--run-id 'a/b'|"
    starts += "--env RANK: the|--partition has no effect|tain.py: No such file"
    for line, start in zip(lines, starts.split("|"), strict=True):
        assert line.startswith(start)
    assert lines[-1].endswith("\ntip: did you mean train.py?")


HIDDEN = [
    (["--python", "/a/python", "--", "/b/python", "tain.py"], "--python /a/python, and /b/python"),
    (["--python", "nopython", "--", "tain.py"], "--python nopython: no such program"),
]


@pytest.mark.parametrize(("words", "start"), HIDDEN)
def test_wrong_python_hides_no_other_problem(tmp_path, monkeypatch, words, start):
    monkeypatch.chdir(tmp_path)
    lines = all_lines(*OWN, "--nodes=0", "--lr=1", "--partition=gpu", *words)
    starts = ("--lr is a setting", "--nodes must be", start, "--partition has", "tain.py: No such")
    for begin in starts:
        assert any(line.startswith(begin) for line in lines), lines
    assert len(lines) == len(starts)


def test_missing_python_of_trainer_is_named_with_other_errors():
    lines = all_lines(*OWN, "--python", "nopython", "--nodes=0", "--task=synthetic")
    assert [line.split(":")[0] for line in lines] == [
        "--nodes must be at least 1 (got 0)",
        "--python nopython",
    ]
    assert all_lines("--launcher=ssh", "--hosts=a", "--python=nopython", "--task=synthetic") == []


@pytest.mark.parametrize(
    "more", [["--env", "PATH=/x"], ["--wrap", "env"], ["--container", "x.sif"]]
)
def test_a_python_that_the_workers_alone_may_find_is_not_refused(tmp_path, monkeypatch, more):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert all_lines(*OWN, "--python", "nopython", *more, "--", "train.py") == []


def test_unset_env_variable_is_named_with_other_errors(monkeypatch):
    monkeypatch.delenv("NOT_SET", raising=False)
    lines = all_lines(*OWN, "--env", "NOT_SET", "--nodes=0", "--", "none.py")
    starts = ("--nodes must", "--env NOT_SET: it is not set here", "none.py: No such file")
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)


WRONG = [
    ([*OWN, "--nodes", "1:0"], "--nodes 1:0: the first number must be the smaller one"),
    (
        [*OWN, "--wrap", "env 'x"],
        "--wrap env 'x: No closing quotation; it is split into words as a shell does it",
    ),
    # of which no other setting is wrong
    (["--launcher", "slrum", "--user", "me"], "--launcher: unknown 'slrum'"),
    (["--hostfile", "h", "--user", "me"], "unknown flag --hostfile"),
]


@pytest.mark.parametrize(("words", "start"), WRONG)
def test_wrong_setting_is_one_line(words, start):
    (line,) = all_lines(*words, "--", "true")
    assert line.startswith(start)


def test_missing_input_of_the_trainer_is_refused_where_known(tmp_path):
    words = ["--resume", "nofile", "--data-dir", "/nope", "--model", "./mine", "--tokenizer", "ber"]
    lines = all_lines(*OWN, *words)
    flags = [line.partition(" does not exist\ntip: give ")[0] for line in lines]
    assert flags == ["--data-dir /nope", "--resume nofile", "--model ./mine"]
    assert all_lines("--launcher", "ssh", "--hosts", "a", *words) == []  # a node may have them
    at_slurm = all_lines("--launcher", "slurm", *words)  # which begins in this folder
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
    assert lines[0].startswith("--nproc-per-node gpu, but this machine shows no GPU")
    assert lines[1].endswith("is in use on this machine\ntip: leave it out, or choose another")


@pytest.mark.parametrize(
    "words",
    [["--task", "quickstart"], ["--sync", "ddp"], ["--quiet"], ["--program", "worker"], PROGRAM],
)
def test_a_line_names_the_trainer_where_nothing_asks_for_it(words):
    assert CommandLine.of([*OWN, *words]).trainer_note == ""
    line = CommandLine.of([*OWN, "--nodes", "2"])
    assert (
        line.trainer_note == "note: no program after --: this trains Muster's own task quickstart"
    )


TASK = ["--task", "synthetic"]
REFUSED = [
    (["--", "none.py"], "none.py: No such file or directory"),
    (["train.py"], "a program of your own follows after --: -- train.py"),
    (["--nodse", "2"], "did you mean --nodes?"),
    (["--launcher", "ssh", "--hosts", "a", "--setup", "--lr", "1e-3"], "--lr is for a run"),
    (["--launcher", "ssh", "--hosts", "a", "--setup", "--", "true"], "leave out -- true"),
    (["--launcher", "ssh", "--hosts", "a", "--setup", "--dry-run"], "--setup has no dry run"),
    ([*TASK, "--nodes", "0", "--lr", "-1"], "--nodes must be at least 1 (got 0)"),
    ([*TASK, "--sync", "single", "--nodes", "4"], "use --sync ddp or --nodes 1"),
    ([*TASK, "--launcher", "pigeon"], "known: auto, local"),
    ([*TASK, "--nproc-per-node", "gpu"], "shows no GPU"),
    ([*TASK, "--node", "4"], "--node"),
    ([*TASK, "--split", "1,1", "--nodes", "4"], "has 2 weights, but world_size is 4"),
    ([*TASK, "--split", "1,1", "--nodes", "1:2"], "--split 1,1 has one part for each worker; "),
    ([*TASK, "--nodes", "4:2"], "--nodes 4:2: the first number must be the smaller one"),
]


@pytest.mark.parametrize(("words", "message"), REFUSED)
def test_the_command_refuses_before_anything_is_made(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert message in refused(submit.main, "--logs-dir", tmp_path / "logs", *words)
    assert list(tmp_path.iterdir()) == []
