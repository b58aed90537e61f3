"""`make gpu-check` runs what it says, writes a page, and says so where there is no GPU."""

import sys
from unittest import mock

import pytest
import torch

from configs import plugins
from muster.errors import UsageError
from tests.benchmarks import gpu_check
from tests.benchmarks.gpu_check import PLAIN, Row, checks, judge, main
from tests.benchmarks.places import Steps
from tests.preload import interpreter


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        main(["--page", str(tmp_path / "page.md")])
    assert list(tmp_path.iterdir()) == []


def test_the_rows_grow_with_the_gpus():
    one, four = (list(checks(gpus, "cuda")) for gpus in (1, 4))
    modes = set(plugins.names("train.sync.modes"))
    assert modes | {PLAIN, "fp16", "bf16", "compile", "resume"} == {row.name for row in one}
    assert {row.workers for row in one} == {1} and {row.workers for row in four} == {1, 2, 4}
    assert [row.workers for row in four if row.name == "fp16"] == [4]
    assert "fp16" not in {row.name for row in checks(2, "cpu")}


def test_a_row_is_wrong_whose_losses_are_others():
    base = Steps([3.0, 2.0], [0.1, 0.1])
    for losses, problem in (
        ([3.0, 2.00001], ""),
        ([3.0, 2.1], "losses differ by 1.0e-01"),
        ([3.0, float("nan")], "losses differ by nan"),
        ([3.0], "1 steps instead of 2"),
    ):
        row = Row("ddp", 2, steps=Steps(losses, [0.1] * len(losses)))
        judge(row, base)
        assert row.problem.startswith(problem) and bool(row.problem) == bool(problem)


def test_on_cpus_the_same_runs_make_a_page(tmp_path, capsys):
    """Real runs: two workers of this machine, one stopped and resumed, and a script beside them."""
    page = tmp_path / "page.md"
    flags = ["--device", "cpu", "--steps", "4", "--batch-size", "4", "--page", str(page)]
    wrong = Row("wrong", 1, ("--sync", "single", "--seed", "7"))

    def some(gpus, device):
        wanted = {("single", 1), ("all_reduce", 2), (PLAIN, 2), ("resume", 2)}
        yield from (one for one in checks(gpus, device) if (one.name, one.workers) in wanted)
        yield wrong
        yield Row("refused", 1, ("--sync", "single", "--max-seq-length", "99999"))

    with (
        mock.patch.object(sys, "executable", interpreter()),
        mock.patch.object(gpu_check, "checks", some),
    ):
        assert main([*flags, "--model", "tiny"]) == 1
    assert "4 of 6 rows are right" in capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert lines[0] == "# A trial of gpu-check on CPUs"
    assert lines[2].startswith("**no GPU**: CPUs; torch ")
    cells = [[one.strip() for one in line.split("|")] for line in lines if line.startswith("| ")]
    rows = {row[1]: row for row in cells}
    assert [rows[name][-2] for name in ("resume", "all_reduce", PLAIN)] == ["right"] * 3
    assert any("stopped after 2" in one for one in rows["resume"])
    assert "**wrong**: losses differ" in rows["wrong"][-2]
    assert "--max-seq-length 99999" in rows["refused"][-2]
