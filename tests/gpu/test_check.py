"""The GPU check runs its rows, writes its page row by row, and reports a missing GPU."""

import json
import sys
import threading

import pytest
import torch

from configs import plugins
from muster.checkout import CHECKOUT
from muster.errors import MusterError, UsageError
from tests.benchmarks.places import Steps
from tests.commands import call
from tests.gpu import check, rows, trial, wheels
from tests.gpu.bench import Bench
from tests.gpu.rows import (
    AGAIN,
    DOCTOR,
    EMPTY_PART,
    EVERY_GPU,
    KILLED,
    RESUMED,
    SECONDS,
    SHARED,
    SINGLE,
    STREAMS,
    STUCK,
    TESTS,
    Row,
    judge,
    rows_for,
)

pytestmark = pytest.mark.slow

OTHERS = ("datasets", "evaluate", "seqeval", "submitit", "ClusterShell", "python-dotenv")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_fails(tmp_path):
    with pytest.raises(UsageError, match="torch sees no GPU here"):
        check.main(["--page", str(tmp_path / "page.md")])
    assert list(tmp_path.iterdir()) == []


def test_gpu_check_starts_without_an_installation(tmp_path):
    """As a bare machine has it: no Muster in its Python, and none of the packages of `OTHERS`."""
    hidden = ", ".join(map(repr, (*OTHERS, "dotenv", "weasyprint", "pandas", "matplotlib")))
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nfor name in [{hidden}]: sys.modules[name] = None\n", encoding="utf-8"
    )
    words = ["--device", "cpu", "--model", "tiny", "--only", "no such row"]
    done = call(
        sys.executable, "-m", "tests.gpu.check", *words,
        cwd=CHECKOUT, env={"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "--only no such row: unknown; known: single; accelerate; " in done.stderr


def test_the_rows_grow_with_the_gpus():
    one, four = (list(rows_for(gpus, "cuda")) for gpus in (1, 4))
    modes = set(plugins.names("train.sync.modes")) - {SINGLE}
    names = {row.name for row in one}
    assert names >= {*modes, SINGLE, AGAIN, TESTS, "fp16", "bf16", "compile", RESUMED, KILLED}
    assert names >= {STUCK, STREAMS, SECONDS, EVERY_GPU, DOCTOR, EMPTY_PART}
    compressed = {f"compress {name}" for name in plugins.names("train.sync.compression")}
    assert {row.name for row in four} >= compressed
    assert not names & {*compressed, f"gather_scatter, {SHARED}"}  # gloo would have to send them
    assert {row.workers for row in one if row.name == f"ddp, {SHARED}"} == {2, 4}
    assert {row.workers for row in four if row.name == "ddp"} == {1, 4}
    assert [row.workers for row in four if row.name == "fp16"] == [4]
    on_cpus = {row.name for row in rows_for(2, "cpu")}
    assert not on_cpus & {"fp16", AGAIN, TESTS, EVERY_GPU, f"ddp, {SHARED}"}


def test_every_row_has_the_losses_of_a_row_before_it():
    rows = list(rows_for(2, "cuda"))
    assert len({row.title for row in rows}) == len(rows)
    for number, row in enumerate(rows):
        assert not row.against or row.against in {other.name for other in rows[: number + 1]}


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


def test_resumed_row_is_judged_by_losses_of_its_own_steps():
    row = Row("resumed", 2, steps=Steps([2.0], [0.1]), first_step=2)
    judge(row, Steps([3.0, 2.0], [0.1, 0.1]))
    assert not row.problem


def test_another_rank_than_the_killed_one_must_not_be_blamed():
    end = {"message": "error: m", "time_unix_s": 12.0, "rank": 0, "cause": "killed", "end": None}
    with pytest.raises(MusterError, match="rank 0 is blamed"):
        rows.blamed(Row("killed", 2), end, "killed")
    rows.blamed(row := Row("killed", 2), {**end, "rank": 1, "end": {"time_unix_s": 10}}, "killed")
    assert row.notes == ["m (run over 2.0 s later)"]


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """A check of a few rows, each with its work; its pages as they were written."""
    pages = []

    def check_of(some, *words, missing=()):
        monkeypatch.setattr(trial, "rows_for", lambda gpus, device: iter(some))
        monkeypatch.setattr(Bench, "prepare", lambda self, pool: None)
        monkeypatch.setattr(
            trial, "write_text", lambda path, text: pages.append((path.suffix, text))
        )
        args = check.parser().parse_args(["--device", "cpu", *words])
        return trial.run_all(args, missing), [text for kind, text in pages if kind == ".md"], pages

    return check_of


def losing(*losses):
    def work(row, bench, folder):
        row.steps = Steps([*losses], [0.5] * len(losses))

    return work


def failing(row, bench, folder):
    raise MusterError("first line\nthe cause")


def test_the_page_is_written_after_every_row_also_one_that_fails(simulated):
    some = [Row("single", 1, losing(1.0)), Row("ddp", 1, failing), Row("fsdp", 1, losing(1.0))]
    code, written, pages = simulated(some, "--cores", "1")
    assert code == 1
    waiting = [page.count("its turn has not come") for page in written]
    assert waiting == [2, 1, 0, 0]
    assert "**wrong**: the cause" in written[-1]
    by_name = {row["name"]: row for row in json.loads(pages[-1][1])}
    assert by_name["ddp"]["log"] == "first line\nthe cause"
    assert by_name["fsdp"]["result"] == "right"


def test_rows_share_cores_but_speed_row_runs_alone(simulated):
    active, most = set(), {}

    def meeting(row, bench, folder):
        active.add(row.name)
        most[row.name] = {*active}
        if not row.alone:
            both.wait(60)
        active.discard(row.name)
        row.steps = Steps([1.0], [0.5])

    both = threading.Barrier(2)
    some = [Row("a", 1, meeting, against=""), Row("b", 1, meeting, against="")]
    some.append(Row("speed", 1, meeting, against="", alone=True))
    code, _, _ = simulated(some, "--cores", "2")
    assert code == 0
    assert most["speed"] == {"speed"}


def test_a_row_waits_for_the_losses_that_it_is_held_against(simulated):
    other_is_done = threading.Event()

    def late(row, bench, folder):
        other_is_done.wait(60)
        row.steps = Steps([1.0], [0.5])

    def early(row, bench, folder):
        row.steps = Steps([9.0], [0.5])
        other_is_done.set()

    code, written, _ = simulated([Row("single", 1, late), Row("ddp", 1, early)], "--cores", "2")
    assert code == 1 and "losses differ by 8.0e+00" in written[-1]


def test_wheels_are_those_of_the_lock(capsys):
    assert wheels.main(["--list"]) == 0
    listed = capsys.readouterr().out.split()
    assert [line.partition("==")[0] for line in listed] == [*wheels.PACKAGES]
    assert not {"torch", "numpy", "pyarrow"} & {*wheels.PACKAGES}
