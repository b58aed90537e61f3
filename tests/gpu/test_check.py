"""The GPU check runs what it says, writes its page row by row, and says so without a GPU."""

import sys
from unittest import mock

import pytest
import torch

from configs import plugins
from muster.errors import MusterError, UsageError
from tests.benchmarks.places import Steps
from tests.commands import call
from tests.gpu import check, rows, trial
from tests.gpu.rows import AGAIN, COMPRESSORS, PLAIN, SCRIPT, SHARED, Row, judge, rows_for
from tests.launch.submit import REPOSITORY
from tests.preload import interpreter

OTHERS = ("datasets", "evaluate", "seqeval", "submitit", "ClusterShell", "python-dotenv")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        check.main(["--page", str(tmp_path / "page.md")])
    assert list(tmp_path.iterdir()) == []


def test_it_starts_without_an_installation_and_without_what_no_row_needs(tmp_path):
    """As a bare machine has it: no Muster in its Python, and none of the packages of `OTHERS`."""
    hidden = ", ".join(map(repr, (*OTHERS, "dotenv", "weasyprint", "pandas", "matplotlib")))
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nfor name in [{hidden}]: sys.modules[name] = None\n", encoding="utf-8"
    )
    words = ["--device", "cpu", "--model", "tiny", "--only", "no such row"]
    done = call(
        sys.executable, "-m", "tests.gpu.check", *words,
        cwd=REPOSITORY, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--only no such row: unknown; known: single; bf16; " in done.stderr


def test_what_every_row_needs_is_asked_for_in_one_line(monkeypatch):
    monkeypatch.setattr(check, "has", lambda name: name not in ("torch", "rich", "datasets"))
    with pytest.raises(UsageError, match="has no torch, rich, which every row needs; install with"):
        check.main([])


def test_missing_packages_and_the_rows_that_go_without_them_are_one_line():
    some = [Row("ddp", 2), Row("accelerate", 2, needs=("accelerate",))]
    line = "missing packages: datasets; no row needs them"
    assert trial.packages_line(["datasets"], some) == line
    line = "missing packages: datasets, accelerate; not run without them: accelerate"
    assert trial.packages_line(["datasets", "accelerate"], some) == line


def test_the_rows_grow_with_the_gpus():
    one, four = (list(rows_for(gpus, "cuda")) for gpus in (1, 4))
    modes = set(plugins.names("train.sync.modes"))
    names = {*modes, AGAIN, PLAIN, SCRIPT, "fp16", "bf16", "compile", "resume"}
    several = {*modes - {"single"}, PLAIN, SCRIPT, *(f"compress {name}" for name in COMPRESSORS)}
    assert {row.name for row in one} == names | {f"{name}, {SHARED}" for name in several}
    assert {row.workers for row in one if SHARED in row.name} == {2, 4}
    assert {row.workers for row in one if SHARED not in row.name} == {1}
    assert {row.workers for row in four} == {1, 2, 4}
    assert [row.workers for row in four if row.name == "fp16"] == [4]
    assert not {row.name for row in rows_for(2, "cpu")} & {"fp16", AGAIN, f"ddp, {SHARED}"}


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


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """A check whose rows take 60 s of a clock of its own each; its pages as they were written."""
    clock, pages = mock.Mock(return_value=0.0), []

    def run(row, made, folder, args, left_s):
        row.seconds = min(60.0, left_s)
        clock.return_value += row.seconds
        if row.seconds < 60:
            raise MusterError(f"not done after {left_s:.0f} s")
        row.steps = Steps([1.0], [0.5])

    monkeypatch.setattr(rows, "run", run)
    monkeypatch.setattr(trial.time, "monotonic", clock)
    monkeypatch.setattr(trial.making, "ready", lambda *words: mock.Mock(gradient_bytes=1e6))
    monkeypatch.setattr(trial, "write_text", lambda path, text: pages.append(text))
    some = [Row(name, 1) for name in ("single", "ddp", "fsdp", "zero1")]
    monkeypatch.setattr(trial, "rows_for", lambda gpus, device: iter(some))

    def simulated(*words, missing=()):
        args = check.parser().parse_args(["--device", "cpu", *words])
        return trial.run_all(args, missing), pages

    return simulated


def test_the_page_is_written_after_every_row(simulated):
    code, pages = simulated()
    assert code == 0
    waiting = [page.count("its turn has not come") for page in pages]
    assert waiting == [3, 2, 1, 0]


def test_what_no_longer_fits_into_the_minutes_is_not_run(simulated, capsys):
    code, pages = simulated("--minutes", "2.5")
    assert code == 0
    assert pages[-1].count("not run: no time was left") == 2
    assert "2 of 4 rows are right, 2 were not run" in capsys.readouterr().out


def test_a_row_that_is_ended_by_the_minutes_is_not_wrong(simulated):
    code, pages = simulated("--minutes", "0.5")
    assert code == 0 and pages[-1].count("not run: no time was left") == 4


def test_only_the_rows_that_are_asked_for_are_run_beside_the_single_process(simulated):
    _, pages = simulated("--only", "fsdp, 1")
    assert len(pages) == 2 and "|ddp|" not in pages[-1] and "|single|" in pages[-1]


def test_on_cpus_the_same_runs_make_a_page(tmp_path, capsys):
    """Real runs: two workers of this machine, one stopped and resumed, and a script beside them."""
    page = tmp_path / "page.md"
    flags = ["--device", "cpu", "--steps", "4", "--batch-size", "4", "--page", str(page)]
    wrong = Row("wrong", 1, ("--sync", "single", "--seed", "7"))

    def some(gpus, device):
        wanted = {("single", 1), ("all_reduce", 2), (PLAIN, 2), (SCRIPT, 2), ("resume", 2)}
        yield from (one for one in rows_for(gpus, device) if (one.name, one.workers) in wanted)
        yield wrong
        yield Row("refused", 1, ("--sync", "single", "--max-seq-length", "99999"))

    with (
        mock.patch.object(sys, "executable", interpreter()),
        mock.patch.object(trial, "rows_for", some),
    ):
        assert check.main([*flags, "--model", "tiny"]) == 1
    assert "5 of 7 rows are right" in capsys.readouterr().out
    lines = page.read_text().splitlines()
    assert lines[0] == "# A trial of the GPU check on CPUs"
    assert lines[2].startswith("**no GPU**: CPUs; torch ")
    table = {line.split("|")[1]: line.split("|") for line in lines if line.startswith("|")}
    assert [table[name][-2] for name in ("resume", "all_reduce", PLAIN, SCRIPT)] == ["right"] * 4
    assert any("stopped after 2" in one for one in table["resume"])
    assert "**wrong**: losses differ" in table["wrong"][-2]
    assert "--max-seq-length 99999" in table["refused"][-2]
