"""Records are read as they are: cut off, of other versions, of missing ranks, of later attempts."""

import pytest

from tests.train.report.folders import evaluation, make_run, step, write_records
from train.report.data.reader import read_run
from train.report.data.tables import all_steps


def test_a_half_written_last_line_is_left_out_without_a_note(tmp_path):
    path = make_run(tmp_path / "run")
    assert read_run(path).notes == []
    file = path / "metrics" / "rank_00000.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    run = read_run(path)
    assert [row["step"] for row in run.first_rank("step")] == list(range(1, 20))
    assert run.notes == []


def test_fields_missing_in_older_records_are_unknown_not_zero(tmp_path):
    old = [{k: v for k, v in step(n).items() if k not in ("sync_s", "kind")} for n in (1, 2, 3)]
    run = read_run(make_run(tmp_path / "run", workers=1, rows={0: old}))
    assert [row["sync_s"] for row in run.first_rank("step")] == [None] * 3
    (note,) = [note for note in run.notes if "sync_s" in note]
    assert ": 3 " in note


def test_unknown_record_kinds_and_broken_lines_are_skipped_and_noted(tmp_path):
    new = {"kind": "energy", "step": 1, "joules": 3}
    path = make_run(tmp_path / "run", more=[new, new])
    file = path / "metrics" / "rank_00000.jsonl"
    lines = file.read_text().splitlines()
    lines[4] = lines[4][:30]
    file.write_text("\n".join(lines) + "\n")
    run = read_run(path)
    assert 5 not in [row["step"] for row in run.first_rank("step")]
    unknown, broken = run.notes
    assert ": 2 " in unknown and "'energy'" in unknown and ": 1 " in broken


def test_missing_ranks_and_those_whose_records_end_early_are_named(tmp_path):
    rows = {0: [step(n) for n in range(1, 10)], 2: [step(n) for n in range(1, 4)]}
    run = read_run(make_run(tmp_path / "run", workers=4, rows=rows))
    missing, early = run.notes
    assert "1, 3 (2 of 4)" in missing and "rank 2 at step 3" in early and "step 9" in early


def test_wait_of_ddps_backward_pass_counts_as_sync(tmp_path):
    rows = [step(n, backward_s=0.5, sync_s=0.01, comm_s=0.4, overlapped_s=0.1) for n in (1, 2)]
    new = read_run(make_run(tmp_path / "new", sync="ddp", workers=1, rows={0: rows}))
    assert new.first_rank("step")[0]["backward_s"] == 0.5  # the worker has told it apart
    for row in rows:
        del row["sync_in_passes_s"]
    for sync, seconds in (("ddp", (0.2, 0.31)), ("all_reduce", (0.5, 0.01))):
        run = read_run(make_run(tmp_path / sync, sync=sync, workers=1, rows={0: rows}))
        row = run.first_rank("step")[0]
        assert (row["backward_s"], row["sync_s"]) == pytest.approx(seconds)
    for row in rows:
        del row["comm_s"]  # as an older version wrote it: what was waited is not known
    run = read_run(make_run(tmp_path / "old", sync="ddp", workers=1, rows={0: rows}))
    assert run.first_rank("step")[0]["backward_s"] is None


def test_metrics_on_which_ranks_differ_are_their_mean_and_noted(tmp_path):
    own = {
        rank: [step(1, rank), evaluation(1, accuracy=value, f1=0.5)]
        for rank, value in enumerate((0.25, 0.75))
    }
    run = read_run(make_run(tmp_path / "run", rows=own))
    assert run.first_rank("eval")[0]["metrics"] == {"accuracy": 0.5, "f1": 0.5}
    (note,) = run.notes
    assert "accuracy from 0.25 to 0.75" in note and "f1" not in note


def test_a_lost_evaluation_does_not_shift_the_mean_of_later_ones(tmp_path):
    first = [evaluation(1, accuracy=0.25)]
    second = [evaluation(2, accuracy=0.75)]
    rows = {0: [step(1), step(2), *first, *second], 1: [step(1, 1), step(2, 1), *second]}
    run = read_run(make_run(tmp_path / "run", rows=rows))
    assert [row["metrics"] for row in run.first_rank("eval")] == [
        {"accuracy": 0.25},
        {"accuracy": 0.75},
    ]
    assert not any("accuracy" in note for note in run.notes)


def test_broken_files_are_noted(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "summary.json").write_text("{")
    (path / "config.yaml").write_text("a: [")
    (path / "environment" / "node0.json").write_text("{")
    notes = read_run(path).notes
    for name in ("summary.json", "config.yaml", "node0.json"):
        assert any(note.startswith(f"{name} ") for note in notes)


def test_a_later_attempt_replaces_what_came_after_its_checkpoint(tmp_path):
    path = make_run(tmp_path / "run", rows={0: [step(n, loss=2.0) for n in (3, 4)]}, workers=1)
    (path / "attempts" / "0").mkdir(parents=True)
    first = [step(n, loss=1.0) for n in range(1, 7)]
    write_records(path / "attempts" / "0", 0, first)
    found = {row["step"]: row["loss"] for row in all_steps(read_run(path))}
    assert found == {1: 1.0, 2: 1.0, 3: 2.0, 4: 2.0}


def test_an_empty_folder_of_records_is_a_run_without_numbers(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank_00000.jsonl").write_bytes(b"\xff\xfe{not json")
    assert all_steps(read_run(tmp_path)) == []
