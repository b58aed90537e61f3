"""A traced run leaves a file per rank, in which the phases are named."""

import json

import pytest

from muster.run_files import is_unfinished
from tests.launch.submit import submit, unnamed
from tests.train.workers import records
from train.records.schema import PHASES
from train.report.data import frames, tables
from train.report.data.subject import read_subject
from train.report.pages import verdict

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """Return the folder and the output of a run with two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    flags = ["--task", "synthetic", "--nodes", "2", "--sync", "ddp", "--max-steps", "9"]
    flags += ["--log-with", "tensorboard", "--checkpoint-every", "4", "--evaluate", "end"]
    code, out, err = submit(*flags, "--profile", "--logs-dir", str(folder), "--run-id", "traced")
    assert code == 0, err
    return folder / "traced", out


def test_profile_has_a_trace_of_each_rank_with_named_phases(traced):
    """Also, every file of its folder is a known file of run folders."""
    run_dir = traced[0]
    assert unnamed(run_dir) == []
    names = {path.name for path in run_dir.iterdir()}
    assert names >= {"model", "checkpoints", "tensorboard", "profile", "summary.json", "exit.json"}
    assert not [path for path in run_dir.rglob("*") if is_unfinished(path.name)]
    for rank in range(2):
        path = run_dir / "profile" / f"rank_{rank:05d}.json"
        events = json.loads(path.read_text())["traceEvents"]
        names = [one.get("name") for one in events]
        assert names.count("muster.backward") == 5  # steps 3 to 7
        assert "muster.sync" in names and "gloo:all_reduce" in names
    found = records(run_dir, 0)
    steps = [one for one in found if one["kind"] == "step"]
    # how much of its communication ddp hides
    assert all(0 < one["overlapped_s"] <= one["comm_s"] for one in steps[1:])
    (collectives,) = (one for one in found if one["kind"] == "collectives")
    sizes = [nbytes for _, _, _, nbytes, _ in collectives["collectives"]]
    assert sum(sizes) == steps[0]["payload_bytes"]


def test_console_summary_and_report_have_the_same_seconds(traced):
    run_dir, printed = traced
    summary = json.loads((run_dir / "summary.json").read_text())
    (reported,) = frames.records(tables.seconds(read_subject([run_dir])))
    shares = []
    for phase in PHASES:
        assert reported[f"{phase}_s"] == pytest.approx(summary[f"{phase}_s"])
        shares.append(f"{phase} {summary[f'{phase}_s'] / summary['step_s']:.0%}")
    assert "  ".join(shares) in printed
    assert sum(summary[f"{phase}_s"] for phase in PHASES) == pytest.approx(summary["step_s"])
    assert f"{reported['samples_per_s']:.1f}" in printed
    for name in ("samples_per_s", "steps"):
        wanted = summary["timed_steps" if name == "steps" else name]
        assert reported[name] == pytest.approx(wanted)
    (row,) = frames.records(verdict.build(read_subject([run_dir])).table)
    scores = summary["evaluations"][-1]
    for name in scores.keys() & row.keys() - {"step", "epoch"}:
        assert row[name] == pytest.approx(scores[name]) and f"{name} {scores[name]:.4f}" in printed
    assert row.get("last_batch_loss") in (None, summary["last_batch_loss"])


def test_run_shorter_than_the_profile_leaves_a_shorter_trace(tmp_path):
    flags = ["--task", "synthetic", "--max-steps", "4", "--profile", "--logs-dir", str(tmp_path)]
    code, _, err = submit(*flags, "--run-id", "short")
    assert code == 0, err
    (path,) = (tmp_path / "short" / "profile").iterdir()
    names = [one.get("name") for one in json.loads(path.read_text())["traceEvents"]]
    assert names.count("muster.backward") == 2
