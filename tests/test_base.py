"""Commands that start, show and end runs need only the base packages; others say what they need."""

import ast
import json
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from muster import extras
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.environments import environment, install_checkout, requirements
from tests.fork_server import interpreter
from tests.train.report.folders import make_run
from tests.written import write

OWN = {"configs", "launch", "muster", "train"}
HERE = ("--launcher", "local", "--nodes", "2")
OF_REPORTS = ("train/report",)
STUDY = "configs/studies/quick.yaml"


@pytest.fixture(scope="module")
def muster(tmp_path_factory):
    """Return the `muster` command of an environment with only the base packages."""
    python = environment(tmp_path_factory.mktemp("base") / "env", *requirements())
    return install_checkout(python)


def remedy(python: Path, extra: str) -> str:
    """Return the tip for a missing extra: activate .venv, which has it, if .venv exists."""
    activate = CHECKOUT / ".venv" / "bin" / "activate"
    if activate.exists():
        return f"activate Muster's environment: source {activate}"
    return f"install: uv pip install --python {python} -e '{CHECKOUT}[{extra}]'"


# Checks all imports of each part of the tree, wherever they stand in a file.
@pytest.mark.parametrize(
    ("chosen", "parts"),
    [
        ((), ("configs", "launch", "muster")),
        (("report",), OF_REPORTS),
        (("trainer", "tensorboard", "wandb"), ("train",)),
    ],
)
def test_setup_requires_what_is_imported(chosen, parts):
    names = distributions_of_modules()
    required = {canonicalize_name(name) for name in requirements(*chosen)}
    files = {file for part in parts for file in (CHECKOUT / part).rglob("*.py")}
    if parts != OF_REPORTS:
        files -= {file for part in OF_REPORTS for file in (CHECKOUT / part).rglob("*.py")}
    for file in sorted(files):
        for module in imported(file) - OWN - sys.stdlib_module_names:
            assert {canonicalize_name(name) for name in names[module]} & required, (file, module)


@cache
def distributions_of_modules() -> Mapping[str, list[str]]:
    return packages_distributions()


def imported(file: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            modules.add(str(node.module).partition(".")[0])
    return modules


@pytest.mark.parametrize("extra", ["", "trainer", "report"])
def test_the_packages_of_an_extra_are_those_of_setup(extra):
    by_module = extras.packages(extra)
    assert [*by_module] == (requirements(extra) if extra else requirements())[-len(by_module) :]
    for name, module in by_module.items():
        distributions = distributions_of_modules()[module]
        assert canonicalize_name(name) in map(canonicalize_name, distributions)


def test_modules_outside_train_import_with_base_packages_alone(muster):
    files = [
        file
        for part in ("configs", "launch", "muster")
        for file in sorted((CHECKOUT / part).rglob("*.py"))
    ]
    names = [".".join(file.relative_to(CHECKOUT).with_suffix("").parts) for file in files]
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)\n"
    done = call(muster.with_name("python"), "-c", code, cwd=CHECKOUT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "words",
    [
        ["--help"], ["run", "--help-all"], ["config", "--nodes", "2"],
        ["testbed", "--help"], ["study", "--help"],
        ["report", "--help"], ["sweep", "--help"], ["jobs", "--help"],
        ["study", STUDY, "--dry-run"],
    ],
)  # fmt: skip
def test_a_command_needs_the_base_alone(muster, tmp_path, words):
    done = call(muster, *words, cwd=CHECKOUT, env={"HOME": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_program_runs_and_its_run_is_shown_and_cleaned(muster, tmp_path):
    write(tmp_path, {"hello.sh": "echo hello from $RANK\n"})
    run = ("--workers", "manual", *HERE, "--run-id", "first", "--", "bash", "hello.sh")
    dry = call(muster, "run", "--dry-run", "--quiet", *run, cwd=tmp_path)
    assert (dry.returncode, dry.stderr) == (0, "")
    done = call(muster, "run", "--json", *run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for words in ("list", "status first", "logs first --rank 1", "nodes", "clean"):
        shown = call(muster, "jobs", *words.split(), cwd=tmp_path)
        assert (shown.returncode, shown.stderr) == (0, ""), words
        assert ("hello from 1" in shown.stdout) == words.startswith("logs")
    for verb in ("stacks", "cancel"):
        over = call(muster, "jobs", verb, "first", cwd=tmp_path)
        assert "first" in over.stdout + over.stderr and "Traceback" not in over.stderr


def test_values_are_swept(muster, tmp_path):
    flags = ("--over", "x=1,2", "--workers", "manual", "--launcher", "local")
    done = call(muster, "sweep", *flags, "--", "bash", "-c", "echo $@", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [["report", "."], ["report", "compare", ".", "."], ["study", STUDY]]
)
def test_missing_packages_of_a_report_are_refused_before_anything_is_done(muster, tmp_path, words):
    if words[0] == "study":
        words = ["study", CHECKOUT / STUDY, "--output", tmp_path / "study"]
    done = call(muster, *words, cwd=tmp_path)
    python = muster.with_name("python")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: a report needs the extra [report], but {python} has no matplotlib, numpy, pandas, "
        f"scipy\ntip: {remedy(python, 'report')}\n"
    )
    assert [*tmp_path.iterdir()] == []


def test_missing_report_packages_are_a_json_document(muster, tmp_path):
    done = call(muster, "study", CHECKOUT / STUDY, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["cause"] == "refused"


OWN_PROGRAMS = [["run", *HERE, "--quiet"], ["run", *HERE, "--dry-run", "--task", "synthetic"]]
OWN_PROGRAMS += [["run", *HERE, "--program", "bench_collectives"]]
OWN_PROGRAMS += [["sweep", "--over", "lr=1e-3,1e-2", "--launcher", "local"]]


@pytest.mark.parametrize("words", OWN_PROGRAMS)
def test_missing_packages_of_the_trainer_are_refused_before_it_starts(muster, tmp_path, words):
    done = call(muster, *words, "--logs-dir", tmp_path)
    python = muster.with_name("python")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "trainer needs" in done.stderr
    assert f" the extra [trainer], but {python} has no torch, " in done.stderr
    assert done.stderr.endswith(f"\ntip: {remedy(python, 'trainer')}\n")
    assert done.stderr.count("\n") == 2
    assert [*tmp_path.iterdir()] == []


def test_hand_started_worker_names_the_missing_trainer_extra(muster):
    command = (muster.with_name("python"), "muster/run_module.py", "train.worker")
    done = call(*command, "--task", "synthetic", cwd=CHECKOUT)
    assert done.returncode == 2
    assert "needs the extra [trainer]" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_trainer_runs_in_another_python_that_has_its_packages(muster, tmp_path):
    flags = ("--workers", "manual", "--task", "synthetic", "--max-steps", "1", "--quiet")
    place = ("--logs-dir", tmp_path, "--run-id", "elsewhere")
    done = call(muster, "run", *HERE, *flags, *place, "--python", interpreter())
    assert done.returncode == 0, done.stderr
    again = tmp_path / "elsewhere" / "config.yaml"
    assert f"python: {interpreter()}\n" in again.read_text()
    dry = call(muster, "run", "--launcher", "local", "--dry-run", "--config", again)
    assert dry.returncode == 0 and interpreter() in dry.stdout, dry.stderr


@pytest.mark.parametrize("name", ["/nowhere/python", "bash"])
def test_a_python_that_is_none_is_refused_by_name(muster, name):
    done = call(muster, "run", *HERE, "--dry-run", "--quiet", "--python", name)
    assert done.returncode == 2
    assert done.stderr.startswith(("error: --python", f"error: {name}"))
    assert name in done.stderr and "--python" in done.stderr


@pytest.mark.needs("ip")
def test_the_doctor_looks_and_says_what_a_measurement_needs(muster, tmp_path):
    command = (muster, "doctor", *HERE, "--logs-dir", tmp_path, "--json")
    (tmp_path / "train.py").write_text("")
    own = call(*command, "--", "train.py", cwd=tmp_path)
    assert own.returncode == 1
    assert "trainer" in own.stderr and "--python" in own.stderr
    document = json.loads(own.stdout.splitlines()[-1])
    assert {row["verdict"] for row in document["checks"]} <= {"ok", "warn"}
    trainer = call(*command)
    (row,) = [row for row in json.loads(trainer.stdout)["checks"] if row["verdict"] == "FAIL"]
    assert row["check"] == "python" and "[trainer]" in row["fix"]


@pytest.mark.slow
def test_a_report_needs_its_extra_alone(tmp_path):
    command = install_checkout(environment(tmp_path / "env", *requirements("report")))
    done = call(command, "report", make_run(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report" / "index.html").is_file()


OF_LIBRARY = "sync sync_ddp init steps checkpoints record launch map job on_stop stopping"


def test_the_library_needs_torch_alone(tmp_path):
    """It works without numpy as well; `muster.evaluate` needs the packages that it calls."""
    python = environment(tmp_path / "env", "torch")
    install_checkout(python)
    code = f"import muster\nfor name in {OF_LIBRARY.split()}: getattr(muster, name)\n"
    done = call(python, "-c", code)
    assert done.returncode == 0, done.stderr


def test_a_login_node_is_asked_with_the_base_alone(muster, tmp_path):
    done = call(muster, "jobs", "list", "--login", "me@login", env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr.count("\nerror: ")) == (2, 0)
    assert " needs ssh, " in done.stderr
