"""The steps of docs/extending.md work as described, in a copy of the checkout."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import interpreter, skip_if_quick
from tests.launch.submit import wait_until
from tests.train import workers

PAGE = (CHECKOUT / "docs" / "extending.md").read_text(encoding="utf-8")
NAMED = re.compile(
    r"`((?:train|configs|launch)/[\w/]+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)```", re.S
)
PACKAGE = dict(re.findall(r"`((?:my_plugins/)?\w+\.(?:py|toml))`:\n\n```\w+\n(.*?)```", PAGE, re.S))
IN_PACKAGE = [shlex.split(one) for one in re.findall(r"^muster run .*--compress sign$", PAGE, re.M)]
COMMANDS = [shlex.split(one) for one in re.findall(r"^python .*--task spirals.*$", PAGE, re.M)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("configs", "launch", "muster", "train"):
        shutil.copytree(CHECKOUT / name, root / name, ignore=ignored)
    files = dict(NAMED.findall(PAGE))
    assert sorted(files) == [
        "configs/spirals.yaml", "launch/launchers/nice.py", "train/sync/modes/reduce_broadcast.py",
        "train/tasks/spirals.py",
    ]  # fmt: skip
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


def run_locally(checkout: Path, words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return call(interpreter(), *words[1:], "--launcher", "local", *more, cwd=checkout)


@pytest.mark.slow
def test_the_pages_commands_train_alike(checkout):
    losses = []
    for number, words in enumerate(COMMANDS):
        done = run_locally(checkout, words, "--run-id", f"run{number}")
        assert done.returncode == 0, done.stderr
        summary = json.loads((checkout / "logs" / f"run{number}" / "summary.json").read_text())
        assert summary["accuracy"] > 0.9
        losses.append(workers.losses(checkout / "logs" / f"run{number}"))
    assert len(losses) == 2
    assert losses[0][:40] == pytest.approx(losses[1][:40], abs=1e-5)


def test_new_task_and_mode_are_known_by_name(checkout):
    done = run_locally(checkout, ["python", "launch/submit.py"], "--task", "nope", "--sync", "nope")
    assert done.returncode == 2
    assert "spirals" in done.stderr and "reduce_broadcast" in done.stderr


def test_a_wrong_flag_is_answered_in_the_tasks_words(checkout):
    done = run_locally(checkout, COMMANDS[0], "--data-dir", str(checkout), "--run-id", "refused")
    assert done.returncode == 2
    assert "spirals are made here, not read" in done.stderr


LONG = ["--epochs", "100000", "--evaluate", "never", "--task", "synthetic", "--threads", "1"]


def jobs(checkout: Path, *words: str) -> str:
    done = call(interpreter(), "launch/jobs.py", *words, cwd=checkout)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_launcher_is_one_file(checkout):
    """The usual commands plan, start, list, follow and cancel its runs."""
    skip_if_quick()
    words = [sys.executable, "launch/submit.py", "--launcher", "nice", "--nodes", "2", *LONG]
    shown = call(*words, "--dry-run", cwd=checkout)
    assert len(shown.stdout.splitlines()) == 2 and "--node-rank 1" in shown.stdout, shown.stderr
    assert call(*words, "--run-id", "nice0", "--detach", cwd=checkout).returncode == 0
    try:
        records = checkout / "logs" / "nice0" / "metrics" / "rank_00001.jsonl"
        wait_until(lambda: records.exists() and records.stat().st_size > 9000)
        assert re.search(r"^nice0 +running ", jobs(checkout, "list"), re.M)
        listed = json.loads(jobs(checkout, "list", "--json"))["runs"][0]
        assert (listed["run_id"], listed["launcher"]) == ("nice0", "nice")
        assert jobs(checkout, "status", "nice0").startswith("nice0: running (led by process")
        assert "node0.0| step 1  loss" in jobs(checkout, "logs", "nice0")
        agent = json.loads((checkout / "logs/nice0/agents/node_00000.json").read_text())
        assert agent["ranks"] == [0]
    finally:
        out = jobs(checkout, "cancel", "nice0")
    assert out == "nice0: stopped\n"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """Return the environment variables with which Python finds the page's package."""
    project, packages = tmp_path_factory.mktemp("my-plugins"), tmp_path_factory.mktemp("packages")
    assert sorted(PACKAGE) == ["my_plugins/background.py", "my_plugins/sign.py", "pyproject.toml"]
    for name, text in PACKAGE.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text, encoding="utf-8")
    offline = ("--no-index", "--no-build-isolation", "--no-deps", "--quiet")
    done = call(sys.executable, "-m", "pip", "install", *offline, "--target", packages, project)
    assert done.returncode == 0, done.stderr
    return {"PYTHONPATH": str(packages)}


def test_plugin_names_of_package_are_known_without_import(installed):
    code = (
        "import sys; from configs import plugins\n"
        "print(*plugins.names('launch.starters'), *plugins.names('train.sync.compression'))\n"
        "sys.exit(any(name.startswith('my_plugins') for name in sys.modules))"
    )
    done = call(sys.executable, "-c", code, cwd=CHECKOUT, env=installed)
    assert done.returncode == 0, done.stderr
    assert {"background", "manual", "sign", "powersgd"} <= {*done.stdout.split()}


def test_a_package_starts_workers_and_compresses_their_gradients(installed, tmp_path):
    skip_if_quick()
    (words,) = IN_PACKAGE
    more = ["--launcher", "local", "--logs-dir", str(tmp_path), "--run-id", "own"]
    start = [interpreter(), "launch/submit.py", *words[2:], *more]
    done = call(*start, cwd=CHECKOUT, env=installed)
    assert done.returncode == 0, done.stderr
    plan = json.loads((tmp_path / "own" / "launch.json").read_text())
    assert "nice" in str(plan)
    assert len(workers.losses(tmp_path / "own")) == 5


PROGRAM = """
import sys
import torch
import muster

with muster.init(device="cpu") as run:
    model = muster.sync(torch.nn.Linear(4, 1, bias=False), compress="sign")
    model(torch.full((1, 4), 1.0 + run.rank)).sum().backward()
    print(f"rank {run.rank}: {model.module.weight.grad.tolist()} {type(model.hook).__mro__[1]}")
"""


@pytest.mark.slow
def test_a_users_program_has_the_compressor_of_a_package(installed, tmp_path):
    skip_if_quick()
    (tmp_path / "train.py").write_text(PROGRAM)
    start = [interpreter(), CHECKOUT / "launch" / "submit.py", "--launcher", "local"]
    start += ["--nodes", "2", "--workers", "background", "--python", interpreter()]
    done = call(*start, "--", "train.py", cwd=tmp_path, env=installed)
    assert done.returncode == 0, done.stderr
    shown = "[[1.5, 1.5, 1.5, 1.5]] <class 'muster._train.sync.ddp.hooks.BucketHook'>"
    assert f"rank 0: {shown}" in done.stdout
