"""The result of a sweep's run is read from its exit code and its own record."""

import signal
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from launch.runs import run_record
from launch.studies import cell_runs
from launch.studies.cell_runs import begin, record_result, run_all, work_of
from launch.studies.cells import Cell, Sweep, check_cells
from muster.writing import read_json, write_json


@pytest.mark.parametrize(
    ("cause", "state"), [("program", "failed"), ("killed", "failed"), ("signal", "stopped")]
)
def test_a_program_that_ends_with_a_signal_s_code_has_failed(tmp_path, cause, state):
    sweep = SimpleNamespace(run_dir=lambda cell: tmp_path, log=lambda cell: tmp_path / "log")
    run_record.end(tmp_path, 143, "error: rank 0 on node0: exit code 143", 0, cause)
    record_result(sweep, cell := SimpleNamespace(), 143)
    assert cell.state == state and "exit code 143" in cell.message


def test_sweep_run_without_traceback_shows_last_output_line(tmp_path):
    sweep = SimpleNamespace(run_dir=lambda cell: tmp_path, log=lambda cell: tmp_path / "log")
    text = "error: rank 1 on node0: exit code 7"
    run_record.end(tmp_path, 7, text, 1, "program", "a warning\nno data in /x")
    record_result(sweep, cell := SimpleNamespace(), 7)
    assert cell.message == "rank 1 on node0: exit code 7: no data in /x"


def test_advice_of_a_stopped_run_is_left_out_of_its_study(tmp_path):
    sweep = SimpleNamespace(run_dir=lambda cell: tmp_path, log=lambda cell: tmp_path / "log")
    text = "stopped cleanly after step 4 (SIGINT); continue with the same command and --resume /x"
    run_record.end(tmp_path, 75, text, None, "stopped")
    record_result(sweep, cell := SimpleNamespace(), 75)
    assert (cell.state, cell.message) == ("stopped", "cleanly after step 4 (SIGINT)")


@pytest.fixture
def sweep(tmp_path):
    """A sweep of two runs that an earlier call has recorded as done."""
    cells = check_cells([Cell(name, {}, ("--nodes=1", "--", "ls", name)) for name in "ab"])
    found = Sweep("s", cells, folder=tmp_path)
    for cell in cells:
        cell.state = "done"
        run_record.end(found.run_dir(cell), 0, "done", None, "done")
    found.write()
    for cell in cells:
        cell.state = "waiting"
    return found


def test_a_damaged_record_of_a_run_begins_that_run_alone_again(sweep):
    record = read_json(sweep.file)
    record["cells"][0]["seconds"] = "long"
    write_json(sweep.file, record)
    begin(sweep)
    assert [cell.state for cell in sweep.cells] == ["waiting", "done"]


def test_fresh_sweep_repeats_what_is_done_even_if_its_record_is_damaged(sweep):
    sweep.file.write_text('{"cells": [')
    begin(sweep, fresh=True)
    assert [cell.state for cell in sweep.cells] == ["waiting", "waiting"]


@pytest.mark.parametrize(
    ("is_measured", "ended_by", "states"),
    [(True, signal.SIGTERM, ["stopped", "waiting"]), (False, None, ["stopped", "stopped"])],
)
def test_stopped_run_ends_a_study_but_not_a_sweep(
    sweep, monkeypatch, is_measured, ended_by, states
):
    """As after `muster jobs cancel`."""
    monkeypatch.setattr(cell_runs, "command_of", lambda *_: ["sh", "-c", "kill $$"])
    sweep.is_measured = is_measured
    begin(sweep, fresh=True)
    works = [work_of(sweep, cell, (), (), nullcontext()) for cell in sweep.cells]
    assert run_all(works) == ended_by
    assert [cell.state for cell in sweep.cells] == states
