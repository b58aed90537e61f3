"""The table at the end of a study or sweep, and its CSV file."""

from launch.studies import progress_table
from launch.studies.cells import Cell, Sweep


def sweep_of(*runs: tuple[dict, dict | None], folder) -> Sweep:
    cells = [
        Cell(str(at), settings, (), state="done", results=results)
        for at, (settings, results) in enumerate(runs)
    ]
    return Sweep("s", tuple(cells), folder=folder)


def header(sweep: Sweep) -> list[str]:
    return [str(column.header) for column in progress_table.table(sweep).columns]


def test_a_setting_that_a_run_reports_again_is_one_column(tmp_path):
    first = ({"batch_size": 32}, {"batch_size": 32, "loss": 0.5})
    second = ({"batch_size": 64}, {"batch_size": 64, "loss": 0.4})
    failed = ({"batch_size": 128}, None)
    found = sweep_of(first, second, failed, folder=tmp_path)
    assert header(found) == ["batch_size", "state", "seconds", "loss", ""]
    progress_table.write_csv(found)
    names = (tmp_path / "results.csv").read_text().splitlines()[0].split(",")
    assert names == ["run", "batch_size", "state", "seconds", "place", "loss", "message"]


def test_result_named_like_a_setting_has_own_column(tmp_path):
    found = sweep_of(({"lr": "1"}, {"lr": 1}), ({"lr": "2"}, {"lr": 1.5}), folder=tmp_path)
    assert header(found) == ["lr", "state", "seconds", "lr", ""]
