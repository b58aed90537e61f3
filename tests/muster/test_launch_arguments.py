"""The input of muster.launch and similar functions: flags, and what a worker must know."""

import json
import sys

import pytest

import muster
from muster.launching import _environment, _flags, write_call
from tests.commands import call


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


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
    """As from `module load`: it wins over another Python on PATH and over an active environment."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python3"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    monkeypatch.setenv("VIRTUAL_ENV", "/of/another")
    monkeypatch.setenv("PATH", "/usr/bin")
    env = _environment()
    assert env["PATH"] == f"{tmp_path / 'bin'}:/usr/bin" and "VIRTUAL_ENV" not in env
