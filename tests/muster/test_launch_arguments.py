"""What muster.launch and its like are given: flags, refusals, and what a worker must know."""

import json
import re
import sys
import threading
from pathlib import Path

import pytest

import muster
from muster.launching import _environment, _flags, write_call
from tests.commands import call


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_function_that_cannot_be_pickled_is_refused():
    with pytest.raises(muster.UsageError, match=r"no run is called|no runs of yours"):
        muster.job("no-such-run")
    with pytest.raises(TypeError, match=r"print or its arguments cannot be pickled: .*lock"):
        muster.launch(print, threading.Lock())


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: muster.launch(print, colour="red"), "unknown flag --colour"),
        (lambda: muster.launch(print, nodes=0), "--nodes must be at least 1"),
        (lambda: muster.launch(print, dry_run=True), "dry_run: that is for a command line"),
        (lambda: muster.launch("train.py"), "muster.launch: function is 'train.py'; it must be a"),
        (lambda: muster.launch(print, kwargs=[1]), "muster.launch: kwargs is a list; give a dict"),
        (lambda: muster.map(None, [1]), "muster.map: function is None; it must be a function"),
        (lambda: muster.map(print, 3), "muster.map: items is a int; give a list of them"),
        (lambda: muster.map(print, [1], at_once=0), "muster.map: at_once is 0; it must be at le"),
        (lambda: muster.job(3), "muster.job: run is 3; give the id of a run"),
        (lambda: muster.job(""), "muster.job: run is ''; give the id of a run"),
        (lambda: muster.job("--all"), "muster.job: run is '--all'; give the id of a run"),
        (lambda: muster.Job(None), "muster.Job: run_dir is None; give a run's folder"),
        (lambda: muster.Job("a").wait("60"), "wait: timeout_s is '60'; it must be a number"),
        (lambda: muster.Job("a").wait(-1), "wait: timeout_s is -1; it must be at least 0"),
        (lambda: muster.Job("a").results("60"), "wait: timeout_s is '60'; it must be a number"),
        (lambda: muster.Job("a").rank(0.5), "rank: number is 0.5; it must be a whole number"),
        (lambda: muster.Job("a").rank(-1), "rank: number is -1; it must be at least 0"),
        (lambda: muster.Job("a").logs(rank="0"), "logs: rank is '0'; it must be a whole number"),
        (lambda: muster.Job("a").logs(rank=-1), "logs: rank is -1; it must be at least 0"),
        (lambda: muster.on_stop(None), "muster.on_stop: save is None; it must be a function"),
    ],
)
def test_wrong_argument_of_launch_is_refused(call, problem):
    with pytest.raises(muster.UsageError, match=re.escape(problem)):
        call()
    assert not Path("logs").exists()


def test_flags_as_a_command_line_has_them():
    given = {
        "nodes": "2:4",
        "hosts": ["node0", "node1"],
        "snapshot": False,
        "quiet": True,
        "network": None,
        "env": {"TOKEN": "hidden"},
        "slurm": ["mail-type=END", "comment=mine"],
        "on": "cluster",
    }
    words, env = _flags(given)
    line = "--nodes=2:4 --hosts=node0,node1 --no-snapshot --quiet --env=TOKEN"
    assert words == f"{line} --slurm=mail-type=END --slurm=comment=mine --on=cluster".split()
    assert "TOKEN" not in env and json.loads(env["MUSTER_ENV"]) == {"TOKEN": "hidden"}
    found, _ = _flags({"slurm": {"comment": "mine"}}, nodes=3, launcher=None)
    assert found == "--nodes=3 --nproc-per-node=1 --launcher=auto --slurm=comment=mine".split()
    with pytest.raises(muster.UsageError, match="hosts: takes no dict"):
        _flags({"hosts": {"node0": 2}})


def test_a_run_that_somebody_else_started_has_a_state(tmp_path):
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "config.yaml").touch()
    assert muster.Job(tmp_path / "by-hand").status().word == "unknown"


def test_importing_muster_loads_nothing_else():
    code = (
        "import sys, muster; before = set(sys.modules); muster.launch;"
        "print(json.dumps([sorted(before & set('torch numpy cloudpickle subprocess'.split())),"
        "sorted(set(sys.modules) & set('torch numpy configs launch train'.split()))]))"
    )
    done = call(sys.executable, "-c", f"import json; {code}")
    assert json.loads(done.stdout) == [[], []]


def test_a_call_says_what_its_worker_must_know(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", str(tmp_path.parent), *sys.path])
    write_call(tmp_path / "call", "work", print, (), {})
    about = json.loads((tmp_path / "call" / "call.json").read_text())
    assert about["name"] == "work" and about["path"][:2] == [".", ".."]
    assert not any("site-packages" in one for one in about["path"])


def test_a_python_that_is_no_environment_runs_its_function(tmp_path, monkeypatch):
    """As `module load` gives it: neither another one on PATH, nor an environment left active."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_ENV", "/of/another")
    monkeypatch.setenv("PATH", "/usr/bin")
    env = _environment()
    assert env["PATH"] == f"{tmp_path / 'bin'}:/usr/bin" and "VIRTUAL_ENV" not in env
