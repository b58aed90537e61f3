"""What came of a run of a sweep is told from its exit code and its own record."""

from types import SimpleNamespace

import pytest

from launch.runs import run_record
from launch.studies.cell_runs import conclude


@pytest.mark.parametrize(("cause", "state"), [("program", "failed"), ("signal", "stopped")])
def test_a_program_that_ends_with_a_signal_s_code_has_failed(tmp_path, cause, state):
    sweep = SimpleNamespace(run_dir=lambda cell: tmp_path, log=lambda cell: tmp_path / "log")
    run_record.end(tmp_path, 143, "error: rank 0 on node0: exit code 143", 0, cause)
    conclude(sweep, cell := SimpleNamespace(), 143)
    assert cell.state == state and "exit code 143" in cell.message
