"""A study runs only what is not done yet, goes on after a failed run, and can be resumed."""

import json
import re
import signal
import subprocess
import sys
import zipfile

import pytest

import launch.study
from muster.checkout import CHECKOUT
from tests.commands import begin, call, ended, finish, refused
from tests.fork_server import interpreter, skip_if_quick
from tests.launch.submit import STUDY, wait_until
from tests.written import write

TEXT = """
title: Two that work and one that does not
base: {task: synthetic, max_steps: 3, evaluate: never, save_model: false}
grid:
  - {sync: [all_reduce, ddp], nodes: 2}
  - {sync: single, resume: missing_folder}
"""


ASSIGNMENT = """
base: {task: synthetic, max_steps: 8, evaluate: never, save_model: false, nodes: 2}
collectives: [all_reduce]
grid: [{name: "Task 2b: by hand", sync: all_reduce, bucket_mb: 0, overlap: false}]
"""


QUICK = CHECKOUT / "configs" / "studies" / "quick.yaml"


def study(folder, text, *words: str) -> subprocess.CompletedProcess:
    """Run the study with this text, or the file QUICK, with the output folder `out`."""
    path = text if text is QUICK else write(folder, {"mine.yaml": text}) / "mine.yaml"
    words = (path, "--output", folder / "out", "--launcher", "local", *words)
    return call(interpreter(), STUDY, *words, timeout_s=840)


def cells(folder) -> dict[str, dict]:
    return {one["id"]: one for one in json.loads((folder / "study.json").read_text())["cells"]}


@pytest.mark.needs("Pango")
def test_study_goes_on_after_a_failure_and_repeats_nothing(tmp_path):
    folder = tmp_path / "out"
    done = study(tmp_path, TEXT)
    found = cells(folder)
    assert done.returncode == 1 and "failed: " in done.stderr
    assert done.stdout.startswith(f"study mine.yaml: 3 runs -> {folder}\n")
    assert [one["state"] for one in found.values()] == ["done", "done", "failed"]
    for name, one in found.items():
        assert (folder / one["run_dir"] / "summary.json").exists() == (one["state"] == "done")
        assert one["seconds"] > 0 and (folder / "logs" / f"{name}.log").exists()

    again = study(tmp_path, TEXT.replace("  - {sync: single, resume: missing_folder}\n", ""))
    assert again.returncode == 0 and "running" not in again.stdout
    report = folder / "report" / "index.html"
    assert f"report: {report}" in again.stdout and "Two that work" in report.read_text()
    for name, one in cells(folder).items():
        assert one["seconds"] == found[name]["seconds"]


def test_flag_that_a_study_sets_is_refused(tmp_path):
    path = write(tmp_path, {"mine.yaml": "{grid: [{task: synthetic}]}"}) / "mine.yaml"
    error = refused(launch.study.main, path, "--logs-dir", tmp_path)
    assert "--logs-dir is set by the study for each of its runs; use --output" in error


def test_dry_run_of_a_study_makes_nothing(tmp_path):
    done = study(tmp_path, QUICK, "--dry-run")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 5
    for line in lines:
        assert "submit.py --task=synthetic" in line and "--launcher local" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_stopped_study_stops_its_run(tmp_path):
    skip_if_quick()
    path, folder = tmp_path / "long.yaml", tmp_path / "out"
    path.write_text("{base: {task: synthetic, epochs: 100000}, grid: [{seed: [1, 2]}]}")
    with ended(begin(sys.executable, STUDY, path, "--output", folder)) as process:
        records = folder / "runs" / "seed-1_0" / "metrics" / "rank_00000.jsonl"
        wait_until(lambda: records.exists() and records.stat().st_size > 2000)
        process.send_signal(signal.SIGTERM)
        code, *output = finish(process)
    assert code == 128 + signal.SIGTERM
    assert "seed-1_0: stopped " in output[0] and "stopped stopped" not in "".join(output)
    first, second = cells(folder).values()
    assert (first["state"], second["state"]) == ("stopped", "waiting")
    assert (folder / "runs" / "seed-1_0" / "stopped.json").exists()


@pytest.mark.slow
def test_killed_study_goes_on_with_the_same_command(tmp_path):
    """The next call completes the interrupted run, but does not repeat the run before it.

    The killed study leaves a run, which ends on its own, and the next call waits for it. The last
    line is a command.
    """
    skip_if_quick()
    path, folder = tmp_path / "short.yaml", tmp_path / "out"
    base = "{task: synthetic, nodes: 1, max_steps: 3, evaluate: never, save_model: false}"
    path.write_text(f"{{base: {base}, grid: [{{seed: [1, 2]}}]}}")
    command = (sys.executable, STUDY, path, "--output", folder, "--launcher", "local")
    second = folder / "runs" / "seed-2_0"
    with ended(begin(*command)) as process:
        wait_until((second / "job.json").exists)
        process.send_signal(signal.SIGKILL)
        code, *_ = finish(process)
    assert code == -signal.SIGKILL
    first = folder / "runs" / "seed-1_0" / "exit.json"
    before = first.read_bytes()
    again = call(*command, timeout_s=840)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [one["state"] for one in cells(folder).values()] == ["done", "done"]
    assert first.read_bytes() == before
    assert again.stdout.splitlines()[-1].endswith(f"muster report {folder}")


@pytest.mark.slow
@pytest.mark.needs("Pango")
def test_the_quick_study_ends_with_a_report_of_every_mode(tmp_path):
    report = tmp_path / "out" / "report"
    done = study(tmp_path, QUICK, "--no-save-model")
    assert done.returncode == 0, done.stdout + done.stderr
    message = (report / "report.md").read_text()
    for mode in ("single", "gather_scatter", "all_reduce", "ddp", "accelerate"):
        assert f"{mode}, " in message
    # the losses equal those of the single process, exactly or nearly so
    losses = re.findall(r"\| (equal|within \de-0[7-9]) ", message)
    assert len(losses) == 4
    assert (report / "report.pdf").exists()


@pytest.mark.slow
@pytest.mark.needs("Pango")
def test_an_assignment_has_names_of_parameters_and_an_archive(tmp_path):
    """The study's collectives are measured once."""
    folder = tmp_path / "out"
    done = study(tmp_path, ASSIGNMENT, "--hand-in")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "collectives: measuring all_reduce" in done.stdout
    bench = json.loads((folder / "collectives" / "network" / "collectives.json").read_text())
    assert {row["name"] for row in bench["collectives"]} == {"all_reduce"}
    (first, *_) = json.loads((folder / "report/data/collectives.json").read_text())["rows"]
    assert (first["parameter"], first["shape"], first["dtype"]) == ("0.weight", "64x8", "float32")
    with zipfile.ZipFile(folder / "hand_in.zip") as archive:
        names = set(archive.namelist())
    (run,) = (one["run_dir"].split("/")[-1] for one in cells(folder).values())
    of_run = {f"task2b/{run}/{name}" for name in ("command.txt", "config.yaml", "summary.json")}
    assert of_run | {"task2b/all_reduce.py", "task2b/after_backward.py"} <= names
    assert {"report.pdf", "code/train/worker.py", "code/configs/rte.yaml"} <= names
    own = folder / "hand_in" / "task2b" / "all_reduce.py"
    own.write_text("mine = True\n")
    again = study(tmp_path, ASSIGNMENT, "--hand-in")
    assert again.returncode == 0 and "measuring" not in again.stdout
    assert own.read_text() == "mine = True\n"  # a student's own code stays


@pytest.mark.slow
def test_collectives_that_cannot_be_measured_do_not_stop_the_study(tmp_path):
    write(tmp_path, {"out/collectives/network": ""})  # in place of its folder
    done = study(tmp_path, ASSIGNMENT)
    assert done.returncode == 0 and "collectives: could not be measured: " in done.stderr
    assert [one["state"] for one in cells(tmp_path / "out").values()] == ["done"]
