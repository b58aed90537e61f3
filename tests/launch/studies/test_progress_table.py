"""The table at the end of a sweep has each column once."""

from launch.studies.cells import Cell, Sweep
from launch.studies.progress_table import table


def test_a_setting_that_runs_record_as_well_is_one_column(tmp_path):
    cells = [Cell(f"batch-{n}", {"batch_size": n}, ()) for n in (32, 64)]
    for cell in cells:
        cell.results = {"batch_size": 32, "loss": 0.5}
    drawn = table(Sweep("s", cells, folder=tmp_path))
    assert [one.header for one in drawn.columns] == ["batch_size", "state", "seconds", "loss", ""]
