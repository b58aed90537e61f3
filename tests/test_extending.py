"""The page on adding one's own is done as it says, in a copy of the checkout."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import call
from tests.launch.submit import wait_until
from tests.preload import interpreter, skip_if_quick
from tests.train import workers

REPOSITORY = Path(__file__).parents[1]
PAGE = (REPOSITORY / "docs" / "extending.md").read_text(encoding="utf-8")
NAMED = re.compile(
    r"`((?:train|configs|launch)/[\w/]+\.(?:py|yaml))`:\n\n```(?:python|yaml)\n(.*?)```", re.S
)
COMMANDS = [shlex.split(one) for one in re.findall(r"^python .*--task spirals.*$", PAGE, re.M)]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("configs", "launch", "muster", "train"):
        shutil.copytree(REPOSITORY / name, root / name, ignore=ignored)
    files = dict(NAMED.findall(PAGE))
    assert sorted(files) == [
        "configs/spirals.yaml", "launch/launchers/nice.py", "train/sync/modes/reduce_broadcast.py",
        "train/tasks/spirals.py",
    ]  # fmt: skip
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return root


def run(checkout: Path, words: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return call(interpreter(), *words[1:], "--launcher", "local", *more, cwd=checkout)


def test_the_pages_commands_train_alike(checkout):
    losses = []
    for number, words in enumerate(COMMANDS):
        done = run(checkout, words, "--run-id", f"run{number}")
        assert done.returncode == 0, done.stderr
        summary = json.loads((checkout / "logs" / f"run{number}" / "summary.json").read_text())
        assert summary["accuracy"] > 0.9
        losses.append(workers.losses(checkout / "logs" / f"run{number}"))
    assert len(losses) == 2
    assert losses[0][:40] == pytest.approx(losses[1][:40], abs=1e-5)


def test_they_are_known_by_their_names(checkout):
    done = run(checkout, ["python", "launch/submit.py"], "--task", "nope", "--sync", "nope")
    assert done.returncode == 2
    assert "spirals" in done.stderr and "reduce_broadcast" in done.stderr


def test_a_wrong_flag_is_answered_in_the_tasks_words(checkout):
    done = run(checkout, COMMANDS[0], "--data-dir", str(checkout), "--run-id", "refused")
    assert done.returncode == 2
    assert "spirals are made here, not read" in done.stderr


LONG = ["--epochs", "100000", "--evaluate", "never", "--task", "synthetic", "--threads", "1"]


def jobs(checkout: Path, *words: str) -> str:
    done = call(interpreter(), "launch/jobs.py", *words, cwd=checkout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_launcher_is_one_file(checkout):
    """Its runs are planned, started, listed, followed and cancelled by the commands of all."""
    skip_if_quick()
    words = [sys.executable, "launch/submit.py", "--launcher", "nice", "--nodes", "2", *LONG]
    shown = call(*words, "--dry-run", cwd=checkout)
    assert len(shown.stdout.splitlines()) == 2 and "--node-rank 1" in shown.stdout, shown.stderr
    assert call(*words, "--run-id", "nice0", "--detach", cwd=checkout).returncode == 0
    try:
        records = checkout / "logs" / "nice0" / "metrics" / "rank_00001.jsonl"
        assert wait_until(lambda: records.exists() and records.stat().st_size > 500)
        assert re.search(r"nice0 +nice +\d+ +running", jobs(checkout, "list"))
        assert jobs(checkout, "status", "nice0").startswith("nice0: running (led by process")
        assert "node0.0| step 1  loss" in jobs(checkout, "logs", "nice0")
        agent = json.loads((checkout / "logs/nice0/agents/node_00000.json").read_text())
        assert agent["ranks"] == [0]
    finally:
        out = jobs(checkout, "cancel", "nice0")
    assert out == "nice0: stopped\n"
