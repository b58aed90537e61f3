"""Nothing that a login node sends back can name, link to or run anything on this machine."""

import json
import os
import stat
from pathlib import Path

import pytest

from launch.ssh.login_node import fetching
from muster import job_lookup, login_job, remote_job
from muster.command import LOGIN
from muster.errors import MusterError, RunFailed, UsageError
from muster.login_job import LoginJob
from muster.writing import write_json
from tests.launch.run_folders import remembered
from tests.written import executable, write


@pytest.fixture
def fetch(installation, tmp_path, monkeypatch):
    """A function that fetches a run into `project/logs`; the login node answers with its folder."""
    monkeypatch.chdir(write(tmp_path / "project", {".git/hooks/README": ""}))

    def of(run: str, answer: object) -> Path:
        says = json.dumps({"run_dir": str(answer)} if isinstance(answer, Path) else answer)
        executable(Path(installation.python), f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        assert fetching.fetch(fetching.fetch_parser().parse_args([run]), installation) == 0
        return Path("logs", run)

    return of


@pytest.fixture
def remote_run(tmp_path):
    """A run's folder on the login node."""
    folder = tmp_path / "homes" / "node0" / "logs" / "run"
    return write(folder, {"exit.json": "{}", "hooks/pre-commit": "evil", "snapshot/x": "", "a": ""})


def test_a_login_node_does_not_name_the_folder_here(fetch, remote_run):
    evil = remote_run / ".."
    (remote_run.parent / "hooks").mkdir()
    for answer in (evil, remote_run.parent / "other", remote_run.with_name("other") / "run" / ".."):
        with pytest.raises(UsageError, match=r"'run' is not the full name .*'(\.\.|other)'"):
            fetch("run", answer)
    assert sorted(map(str, Path().rglob("*"))) == [".git", ".git/hooks", ".git/hooks/README"]


@pytest.mark.parametrize("answer", [[], {}, {"run_dir": 1}, {"run_dir": "run"}, "run", None])
def test_an_odd_answer_is_one_line(fetch, answer):
    with pytest.raises(MusterError, match=r"node0: its answer about run is not valid: "):
        fetch("run", answer)


def test_only_plain_files_come_and_those_left_there_are_named(fetch, remote_run, capfd):
    (remote_run / "out").symlink_to("/etc")
    (remote_run / "in").symlink_to("exit.json")
    os.mkfifo(remote_run / "pipe")
    (remote_run / "hooks" / "pre-commit").chmod(0o6755)
    here = fetch("run", remote_run)
    found = {str(path.relative_to(here)) for path in here.rglob("*")}
    assert found == {"exit.json", "a", "hooks", "hooks/pre-commit"}
    mode = stat.S_IMODE((here / "hooks" / "pre-commit").stat().st_mode)
    assert not mode & 0o7133
    printed = capfd.readouterr().err
    assert printed == 'note: not copied, since they are not regular files: "in", "out", "pipe"\n'


def test_last_whole_checkpoint_is_fetched(fetch, remote_run):
    steps = ("step_00000001", "step_00000002", "step_00000003.node0.9.partial", "step_x")
    write(remote_run, {f"checkpoints/{step}/state.json": "{}" for step in steps})
    here = fetch("run", remote_run) / "checkpoints"
    assert [path.name for path in here.iterdir()] == ["step_00000002"]


def test_copy_never_overwrites_a_run_of_this_machine(fetch, remote_run):
    own = write(remembered(Path("logs", "run").absolute()), {"a": "own"})
    with pytest.raises(UsageError, match="logs/run is"):
        fetch("run", remote_run)
    assert [path.name for path in own.iterdir()] == ["a"] and (own / "a").read_text() == "own"


def test_results_stay_private(fetch, remote_run):
    result = write(remote_run, {"results/rank_00000.pkl": "x"}) / "results" / "rank_00000.pkl"
    result.chmod(0o600)
    here = fetch("run", remote_run)
    assert stat.S_IMODE((here / "results" / "rank_00000.pkl").stat().st_mode) == 0o600


def test_login_greeting_is_no_part_of_a_runs_end(tmp_path, monkeypatch):
    """The run has no record of its end, which would have come with the results."""
    state = {"word": "failed", "over": True, "detail": "", "notes": []}
    end = {"exit_code": 1, "rank": None, "message": "Slurm reports NODE_FAIL for job 12"}
    answer = {"code": 1, "word": "failed", "is_over": True, "detail": "", "notes": []}
    monkeypatch.setattr(login_job, "run_command", lambda *_: json.dumps(answer))
    printed = f"Welcome to the cluster!\n{json.dumps({**state, 'end': end})}\n"
    monkeypatch.setattr(remote_job, "run_command", lambda *_: printed)
    monkeypatch.chdir(tmp_path)
    job = LoginJob("run", "/there/logs/run", {**dict.fromkeys(LOGIN), "login": "me@node0"})
    with pytest.raises(RunFailed, match="run: Slurm reports NODE_FAIL for job 12"):
        job.results()


def test_run_known_from_login_node_is_never_taken_as_local(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    known = dict.fromkeys(("login_config", "login_dir", "login_python"))
    write_json(tmp_path / "muster" / "logins" / "run", {**known, "login": "me@node0"})
    replies: list[object] = []
    monkeypatch.setattr(job_lookup, "run_command", lambda *_: json.dumps({"run_dir": replies[-1]}))
    for place in ("/x/run", "/x/..", "/x/other"):
        replies.append(place)
        job = job_lookup.job("run")
        assert isinstance(job, LoginJob) and job.run_dir == tmp_path / "logs" / "run"
    for odd in ("--login-config=logs/run/x", "run", None):
        replies.append(odd)
        with pytest.raises(MusterError, match=r"me@node0: .* run, which is not an absolute path"):
            job_lookup.job("run")
