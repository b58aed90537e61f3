"""A sweep runs what is not done yet, several runs at a time, stops cleanly, and can be resumed."""

import csv
import errno
import fcntl
import json
import os
import shlex
import signal
import sys
from pathlib import Path

import psutil
import pytest

from launch.studies import cell_runs
from tests import commands
from tests.fork_server import skip_if_quick
from tests.launch.submit import JOBS, SWEEP, alive, wait_until
from tests.launch.sweeps import LOCAL, begun, cells, folder_of, new_project, start, sweep
from train.report.data.subject import read_subject


@pytest.fixture
def sweep_project(tmp_path) -> Path:
    return new_project(tmp_path)


POINTS = [(lr, seed) for lr in ("1e-4", "3e-4") for seed in "13"]
NAMES = [f"train-lr-{lr}_seed-{seed}" for lr, seed in POINTS]
WORDS = [*LOCAL, "--at-once", "2", "--over", "lr=1e-4,3e-4", "--over", "seed=1,3"]
WORDS += ["--", "train.py", "--betas", "0.9,0.999"]


class Swept:
    """A call of a sweep: its output, and the sweep's records and files after it."""

    def __init__(self, sweep_project: Path) -> None:
        self.project = sweep_project
        self.code, self.out, self.err = sweep(sweep_project, *WORDS)
        self.begun, self.cells, self.folder = (
            begun(sweep_project),
            cells(sweep_project),
            folder_of(sweep_project),
        )
        with (self.folder / "results.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Swept:
    """A sweep whose runs with the second seed have failed."""
    return Swept(new_project(tmp_path_factory.mktemp("swept")))


@pytest.fixture(scope="module")
def again(swept) -> Swept:
    """The same, called again after its program was repaired."""
    (swept.project / "repaired").touch()
    return Swept(swept.project)


def test_every_combination_is_run_once(swept):
    assert swept.code == 1, swept.out + swept.err
    assert swept.begun == [f"{lr} {seed} 0.9,0.999" for lr, seed in POINTS]
    states = {name: one["state"] for name, one in swept.cells.items()}
    assert states == dict(zip(NAMES, ["done", "failed"] * 2, strict=True))


def test_table_of_a_sweep_has_the_reason_of_a_failure(swept):
    table = swept.out[swept.out.index(": 2 of 4 done") :].splitlines()
    assert table[3].split()[:3] == ["1e-4", "3", "failed"]
    assert table[3].endswith("ValueError: sample 17 is empty")
    assert "train-lr-1e-4_seed-3 failed: ValueError: sample 17 is empty; see " in swept.err


def test_results_of_a_sweep_are_a_csv_file(swept):
    assert [row["run"] for row in swept.rows] == NAMES
    assert [(row["loss"], row["note"]) for row in swept.rows[:2]] == [("0.0001", "a, b"), ("", "")]


def test_second_call_runs_what_failed(again):
    assert again.code == 0, again.out + again.err
    assert len(again.begun) == 6 and "seed-1: " not in again.out
    assert again.cells["train-lr-1e-4_seed-1"]["results"]["begun"] == 1
    assert again.cells["train-lr-1e-4_seed-3"]["results"]["begun"] == 2  # with its checkpoints


def test_runs_of_a_sweep_are_listed_and_reported(again):
    listed = commands.call(sys.executable, JOBS, "list", cwd=again.project)
    assert listed.returncode == 0 and " (4 runs)  done" in listed.stdout, listed.stderr
    entries = read_subject([again.folder]).entries  # what a report is made from
    assert {entry.run.name for entry in entries} == set(NAMES)


def test_another_command_is_another_sweep(again):
    sweep(again.project, *WORDS, "--more")
    assert len(list((again.project / "logs" / "sweeps").iterdir())) == 2


SHOWS = """
import os, time
from pathlib import Path
assert "MUSTER_ENV" not in os.environ
Path("seen").write_text(os.environ["TOKEN"])
while not Path("go").exists(): time.sleep(0.05)
"""


def test_sweep_writes_env_value_to_no_file_or_command_line(sweep_project):
    (sweep_project / "shows.py").write_text(SHOWS)
    secret = f"s3cr3t-{os.getpid()}\nX=1"
    hidden = secret.partition("\n")[0]
    words = [*LOCAL, "--over", "lr=1", "--env", f"TOKEN={secret}"]
    code, out, err = sweep(sweep_project, "--dry-run", *words, "--", "shows.py")
    assert code == 0 and hidden not in out + err
    seen = sweep_project / "seen"
    with commands.ended(
        start(sweep_project, *words, "--", "shows.py", python=sys.executable)
    ) as process:
        wait_until(lambda: seen.exists() and seen.read_text() == secret)
        everybody = psutil.process_iter(["cmdline"])  # as anybody on this machine can read them
        assert not any(hidden in word for one in everybody for word in one.info["cmdline"] or ())
        (sweep_project / "go").touch()
        code, out, err = commands.finish(process)
    assert code == 0 and hidden not in out + err
    written = [path for path in (sweep_project / "logs").rglob("*") if path.is_file()]
    assert [path for path in written if hidden.encode() in path.read_bytes()] == []
    assert (
        "--env TOKEN"
        in json.loads((folder_of(sweep_project) / "sweep.json").read_text())["command"]
    )


def test_runs_of_a_sweep_have_the_settings_of_a_pipe(sweep_project):
    skip_if_quick()
    (sweep_project / "size.py").write_text("import os\nprint(os.environ['WORLD_SIZE'])\n")
    command = shlex.join([sys.executable, SWEEP, *LOCAL, "--over", "lr=1,2", "--at-once", "2"])
    piped = "--config <(echo 'nodes: 2') -- size.py"
    done = commands.call("bash", "-c", f"{command} {piped}", cwd=sweep_project)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = (folder_of(sweep_project) / "runs").glob("*/workers/rank_00001.out")
    assert [path.read_text() for path in outputs] == ["2\n"] * 2


@pytest.mark.slow
def test_fresh_runs_all_again_without_checkpoints(sweep_project):
    words = [*LOCAL, "--name", "mine", "--over", "lr=1,2"]
    code, _, err = sweep(sweep_project, *words, "--", "train.py", "--seed", "1")
    assert code == 0, err
    code, _, err = sweep(sweep_project, *words, "--fresh", "--", "train.py", "--seed", "1")
    assert code == 0 and folder_of(sweep_project).name == "mine", err
    assert begun(sweep_project) == ["1 1 None"] * 2 + ["2 1 None"] * 2
    assert {one["results"]["begun"] for one in cells(sweep_project).values()} == {1}


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_interrupted_sweep_goes_on_where_it_was(sweep_project, number):
    """A killed sweep leaves a run, which ends on its own, and the next call waits for it."""
    skip_if_quick()
    (sweep_project / "block").touch()
    words = [*LOCAL, "--at-once", "2", "--over", "seed=1,2,4", "--", "train.py", "--lr", "1"]
    with commands.ended(start(sweep_project, *words, python=sys.executable)) as process:
        both = {"1 1 None", "1 2 None", "1 4 None"}
        wait_until(lambda: set(begun(sweep_project)) == both)
        wait_until(lambda: cells(sweep_project)["train-seed-4"]["state"] == "done")
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number, out + err
        assert "run the same command again" in err
        assert [one["state"] for one in cells(sweep_project).values()] == [
            "done",
            "stopped",
            "done",
        ]
        assert alive(sweep_project) == []

    (sweep_project / "block").unlink()
    code, out, err = sweep(sweep_project, *words)
    assert code == 0, out + err
    assert begun(sweep_project) == ["1 1 None", "1 2 None", "1 2 None", "1 4 None"]
    assert [one["results"]["begun"] for one in cells(sweep_project).values()] == [1, 2, 1]


@pytest.mark.slow
def test_a_file_system_without_locks_keeps_nobody_from_a_sweep(tmp_path, monkeypatch, capsys):
    def unsupported(file, operation):
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", unsupported)  # all file systems here have locks
    with cell_runs.sweep_lock(tmp_path):
        assert "cannot be locked (Operation not supported)" in capsys.readouterr().err


@pytest.mark.slow
def test_sweep_has_one_leader_and_can_run_detached(sweep_project):
    (sweep_project / "block").touch()
    words = [*LOCAL, "--over", "seed=2", "--", "train.py", "--lr", "1"]
    code, out, err = sweep(sweep_project, "--detach", *words, python=sys.executable)
    assert code == 0 and "in the background, as process " in out, err
    leader = int(out.partition("as process ")[2].partition(";")[0])
    try:
        code, _, err = sweep(sweep_project, *words)
        assert code == 2 and "already running: " in err
        wait_until(lambda: begun(sweep_project) == ["1 2 None"])
    finally:
        os.kill(leader, signal.SIGTERM)
    log = folder_of(sweep_project) / "sweep.log"
    wait_until(lambda: "run the same command again" in log.read_text())
    assert [one["state"] for one in cells(sweep_project).values()] == ["stopped"]
    assert alive(sweep_project) == []
