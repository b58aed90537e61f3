"""Two runs with equal losses compare as equal; otherwise the first differing step is named."""

import pytest

from muster.writing import write_json
from tests.train.report.folders import ENVIRONMENT, make_run, step
from train.report import compare


def test_equal_losses_pass_and_all_that_differs_is_said(tmp_path, capsys):
    first, second = ({f"setting_{number}": name for number in range(250)} for name in "ab")
    paths = [make_run(tmp_path / "a", **first)]
    paths += [make_run(tmp_path / "b", sync="all_reduce", **second)]
    other = {"commit": "f" * 40, "cores": 8}
    write_json(paths[1] / "environment" / "node0.json", ENVIRONMENT | other)
    assert compare.main(paths, 1e-6) == 0
    message = capsys.readouterr().out
    for word in (
        "a and b: ",
        "1e-06",
        "20 common steps",
        "all_reduce",
        "| cores",
        "f" * 40,
        "setting_249",
    ):
        assert word in message
    assert "more rows" not in message


@pytest.mark.parametrize("wanted, code", [(1e-6, 1), (1e-2, 0), (None, 0)])
def test_the_step_from_which_losses_part_is_named(tmp_path, capsys, wanted, code):
    rows = [step(n, loss=1 / n + (1e-3 if n >= 7 else 0)) for n in range(1, 21)]
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", rows=rows)]
    assert compare.main(paths, wanted) == code
    assert ("step 7 " in capsys.readouterr().out) == (wanted != 1e-2)


@pytest.mark.parametrize(
    "rows", [{}, [step(n, loss=float("nan") if n == 3 else 1 / n) for n in range(1, 21)]]
)
def test_losses_that_are_missing_or_no_number_equal_none(tmp_path, rows):
    paths = [make_run(tmp_path / "a"), make_run(tmp_path / "b", rows=rows)]
    assert compare.main(paths, 1e-6) == 1
