"""A sweep runs what is not done yet, several at a time, ends in order, and goes on when called."""

import csv
import errno
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from launch.studies import cell_runs
from tests import commands
from tests.launch.submit import JOBS, alive, wait_until
from tests.launch.sweeps import LOCAL, begun, cells, folder_of, new_project, start, sweep
from tests.preload import skip_if_quick
from train.report.data.subject import read_subject


@pytest.fixture
def project(tmp_path) -> Path:
    return new_project(tmp_path)


def test_every_combination_is_run_once_and_what_failed_again(project):
    words = [*LOCAL, "--at-once", "2", "--over", "lr=1e-4,3e-4", "--over", "seed=1,3"]
    words += ["--", "train.py", "--betas", "0.9,0.999"]
    code, out, err = sweep(project, *words)
    assert code == 1, out + err
    points = [(lr, seed) for lr in ("1e-4", "3e-4") for seed in "13"]
    assert begun(project) == [f"{lr} {seed} 0.9,0.999" for lr, seed in points]
    states = {name: one["state"] for name, one in cells(project).items()}
    names = [f"train-lr-{lr}_seed-{seed}" for lr, seed in points]
    assert states == dict(zip(names, ["done", "failed"] * 2, strict=True))
    table = out[out.index(": 2 of 4 done") :].splitlines()
    assert table[3].split()[:3] == ["1e-4", "3", "failed"]
    assert table[3].endswith("ValueError: sample 17 is empty")
    assert "train-lr-1e-4_seed-3 failed: ValueError: sample 17 is empty; see " in err
    with (folder_of(project) / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["run"] for row in rows] == names
    assert [(row["loss"], row["note"]) for row in rows[:2]] == [("0.0001", "a, b"), ("", "")]

    (project / "repaired").touch()
    code, out, err = sweep(project, *words)
    assert code == 0, out + err
    assert len(begun(project)) == 6 and "seed-1: " not in out
    found = cells(project)
    assert found["train-lr-1e-4_seed-1"]["results"]["begun"] == 1
    assert found["train-lr-1e-4_seed-3"]["results"]["begun"] == 2  # with the same checkpoints

    listed = commands.call(sys.executable, JOBS, "list", cwd=project)
    assert listed.returncode == 0 and listed.stdout.count("train-lr-") >= 4, listed.stderr
    entries = read_subject([folder_of(project)]).entries  # what a report is made from
    assert {entry.run.name for entry in entries} == set(states)

    code, out, err = sweep(project, *words, "--more")  # another command is another sweep
    assert len(list((project / "logs" / "sweeps").iterdir())) == 2


SHOWS = """
import os, time
from pathlib import Path
assert "MUSTER_ENV" not in os.environ
Path("seen").write_text(os.environ["TOKEN"])
while not Path("go").exists(): time.sleep(0.05)
"""


def test_no_value_of_env_is_written_down_or_on_a_command_line(project):
    (project / "shows.py").write_text(SHOWS)
    secret = f"s3cr3t-{os.getpid()}\nX=1"
    hidden = secret.partition("\n")[0]
    words = [*LOCAL, "--over", "lr=1", "--env", f"TOKEN={secret}"]
    code, out, err = sweep(project, "--dry-run", *words, "--", "shows.py")
    assert code == 0 and hidden not in out + err
    seen = project / "seen"
    with commands.ended(start(project, *words, "--", "shows.py", python=sys.executable)) as process:
        assert wait_until(lambda: seen.exists() and seen.read_text() == secret)
        everybody = psutil.process_iter(["cmdline"])  # as all on this machine can read them
        assert not any(hidden in word for one in everybody for word in one.info["cmdline"] or ())
        (project / "go").touch()
        code, out, err = commands.finish(process)
    assert code == 0 and hidden not in out + err
    written = [path for path in (project / "logs").rglob("*") if path.is_file()]
    assert [path for path in written if hidden.encode() in path.read_bytes()] == []
    assert "--env TOKEN" in json.loads((folder_of(project) / "sweep.json").read_text())["command"]


@pytest.mark.slow
def test_fresh_runs_all_again_without_checkpoints(project):
    words = [*LOCAL, "--name", "mine", "--over", "lr=1,2"]
    code, _, err = sweep(project, *words, "--", "train.py", "--seed", "1")
    assert code == 0, err
    code, _, err = sweep(project, *words, "--fresh", "--", "train.py", "--seed", "1")
    assert code == 0 and folder_of(project).name == "mine", err
    assert begun(project) == ["1 1 None"] * 2 + ["2 1 None"] * 2
    assert {one["results"]["begun"] for one in cells(project).values()} == {1}


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_it_ends_in_order_and_goes_on_where_it_was(project, number):
    """One that was killed has left a run, which ends by itself, and is waited for."""
    skip_if_quick()
    (project / "block").touch()
    words = [*LOCAL, "--at-once", "2", "--over", "seed=1,2,4", "--", "train.py", "--lr", "1"]
    with commands.ended(start(project, *words, python=sys.executable)) as process:
        both = {"1 1 None", "1 2 None", "1 4 None"}
        assert wait_until(lambda: set(begun(project)) == both)
        assert wait_until(lambda: cells(project)["train-seed-4"]["state"] == "done")
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number, out + err
        assert "the same command goes on with what is left" in err
        assert [one["state"] for one in cells(project).values()] == ["done", "stopped", "done"]
        assert alive(project) == []

    (project / "block").unlink()
    code, out, err = sweep(project, *words)
    assert code == 0, out + err
    assert begun(project) == ["1 1 None", "1 2 None", "1 2 None", "1 4 None"]
    assert [one["results"]["begun"] for one in cells(project).values()] == [1, 2, 1]


@pytest.mark.slow
def test_a_file_system_without_locks_keeps_nobody_from_a_sweep(tmp_path, monkeypatch, capsys):
    def unsupported(file, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)  # no file system here is without
    with cell_runs.sweep_lock(tmp_path):
        assert "cannot be locked (Operation not supported)" in capsys.readouterr().err


@pytest.mark.slow
def test_only_one_leads_a_sweep_and_it_can_go_on_in_the_background(project):
    (project / "block").touch()
    words = [*LOCAL, "--over", "seed=2", "--", "train.py", "--lr", "1"]
    code, out, err = sweep(project, "--detach", *words, python=sys.executable)
    assert code == 0 and "in the background, as process " in out, err
    leader = int(out.partition("as process ")[2].partition(";")[0])
    try:
        code, _, err = sweep(project, *words)
        assert code == 2 and "this sweep is running already: " in err
        assert wait_until(lambda: begun(project) == ["1 2 None"])
    finally:
        os.kill(leader, signal.SIGTERM)
    log = folder_of(project) / "sweep.log"
    assert wait_until(lambda: "the same command goes on" in log.read_text())
    assert [one["state"] for one in cells(project).values()] == ["stopped"]
    assert alive(project) == []
