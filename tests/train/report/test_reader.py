"""Records are read even if they are cut off, of unknown kinds, or missing for some ranks."""

import pytest

from muster.writing import write_json
from tests.train.report.folders import evaluation, make_run, step
from train.report.data.reader import read_run
from train.report.data.subject import read_subject


def test_a_half_written_last_line_is_left_out_without_a_note(tmp_path):
    path = make_run(tmp_path / "run")
    assert read_run(path).notes == []
    file = path / "metrics" / "rank_00000.jsonl"
    file.write_bytes(file.read_bytes()[:-40])
    run = read_run(path)
    assert [row["step"] for row in run.ranks[0]["step"]] == list(range(1, 20))
    assert run.notes == []


def test_fields_missing_in_records_are_unknown_not_zero(tmp_path):
    rows = [{k: v for k, v in step(n).items() if k != "sync_s"} for n in (1, 2, 3)]
    run = read_run(make_run(tmp_path / "run", workers=1, rows={0: rows}))
    assert [row["sync_s"] for row in run.ranks[0]["step"]] == [None] * 3
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
    assert 5 not in [row["step"] for row in run.ranks[0]["step"]]
    unknown, broken = run.notes
    assert ": 2 " in unknown and "'energy'" in unknown and ": 1 " in broken


def test_missing_ranks_and_those_whose_records_end_early_are_named(tmp_path):
    rows = {0: [step(n) for n in range(1, 10)], 2: [step(n) for n in range(1, 4)]}
    run = read_run(make_run(tmp_path / "run", workers=4, rows=rows))
    missing, early = run.notes
    assert "1, 3 (2 of 4)" in missing and "rank 2 at step 3" in early and "step 9" in early


def test_metrics_on_which_ranks_differ_are_their_mean_and_noted(tmp_path):
    own = {
        rank: [step(1, rank), evaluation(1, accuracy=value, f1=0.5)]
        for rank, value in enumerate((0.25, 0.75))
    }
    run = read_run(make_run(tmp_path / "run", rows=own))
    assert run.ranks[0]["eval"][0]["metrics"] == {"accuracy": 0.5, "f1": 0.5}
    (note,) = run.notes
    assert "accuracy from 0.25 to 0.75" in note and "f1" not in note


def test_a_lost_evaluation_does_not_shift_the_mean_of_later_ones(tmp_path):
    first = [evaluation(1, accuracy=0.25)]
    second = [evaluation(2, accuracy=0.75)]
    rows = {0: [step(1), step(2), *first, *second], 1: [step(1, 1), step(2, 1), *second]}
    run = read_run(make_run(tmp_path / "run", rows=rows))
    assert [row["metrics"] for row in run.ranks[0]["eval"]] == [
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


@pytest.mark.parametrize("stated", [10**30, -1, True, "4"])
def test_a_number_of_workers_that_cannot_be_is_not_believed(tmp_path, stated):
    path = make_run(tmp_path / "run", workers=2)
    write_json(path / "summary.json", {"world_size": stated})
    run = read_run(path)
    assert run.workers == 2 and run.notes == []


def test_an_empty_folder_of_records_is_a_run_without_numbers(tmp_path):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "rank_00000.jsonl").write_bytes(b"\xff\xfe{not json")
    assert not len(read_subject([tmp_path]).steps)
