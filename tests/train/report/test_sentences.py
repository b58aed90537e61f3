"""A sentence is made where its numbers bear it, and not where they do not."""

from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step
from train.report import compare
from train.report.data import event_tables, tables
from train.report.data.subject import read_subject
from train.report.pages import page, provenance, sections, sentences


def told_of_losses(tmp_path, by_run, **config):
    """`by_run`: name to (workers, split, losses)."""
    for name, (workers, split, losses) in by_run.items():
        rows = [step(n + 1, loss=loss) for n, loss in enumerate(losses)]
        ranks = dict.fromkeys(range(workers), rows)
        make_run(tmp_path / name, workers=workers, split=split, rows=ranks, **config)
    subject = read_subject([tmp_path / name for name in by_run])
    return sentences.of_losses(tables.first_losses(subject), subject)


def test_rounding_that_grows_is_not_put_down_to_dropout(tmp_path):
    """VGG at a learning rate of 0.1: the first losses agree to six digits, later ones do not."""
    losses = {
        "a": (1, "even", [2.479086, 4.690726, 8.260259]),
        "b": (4, "even", [2.479086, 4.690761, 8.267421]),
    }
    lines = told_of_losses(tmp_path, losses)
    assert not any("dropout was not set" in line.lower() for line in lines)
    assert any("Rounding that training amplifies" in line and "4 workers" in line for line in lines)


def test_other_masks_show_in_the_first_loss(tmp_path):
    """Another split draws other masks as another number of workers does."""
    losses = {
        "a": (2, "even", [11.0836, 11.0847]),
        "b": (2, "auto", [11.0780, 11.0941]),
        "c": (2, "even", [11.0836, 11.0847]),
    }
    lines = told_of_losses(tmp_path, losses)
    assert any("another split draws other masks" in line for line in lines)
    (same,) = [line for line in lines if line.startswith("Among runs on 2")]
    assert "with one split the largest difference is 0 " in same
    lines = told_of_losses(tmp_path / "off", losses, dropout=0)
    assert not any("masks" in line for line in lines)


def test_one_worker_hides_no_communication(tmp_path):
    """DDP's clock runs on one worker, too; there is nobody to communicate with."""
    for workers in (1, 2):
        rows = [step(n, comm_s=0.006, overlapped_s=0.005) for n in range(1, 9)]
        make_run(tmp_path / str(workers), workers=workers, rows=dict.fromkeys(range(workers), rows))
    table = tables.seconds(read_subject([tmp_path / "1", tmp_path / "2"]))
    (alone,), (two,) = table.select(workers=1), table.select(workers=2)
    assert alone["overlapped_s"] is alone["hidden_share"] is None
    assert 0 < two["hidden_share"] < 1


def test_few_expected_bytes_give_no_ratio(tmp_path):
    """Four bytes expected, 40,806 seen: acknowledgements of what was sent the other way."""
    few = folders.traffic(
        0, payload_received_bytes=0, control_received_bytes=4, wire_bytes_received=22_726,
        observed_received_bytes=40_806,
    )  # fmt: skip
    table = event_tables.traffic(read_subject([make_run(tmp_path / "run", more=[few])]))
    (sent,), (received,) = (table.select(direction=way) for way in ("sent", "received"))
    assert sent["ratio"] is not None and sent["ratio_wire"] is not None
    assert received["ratio"] is received["ratio_wire"] is None
    assert received["observed_bytes"] == 40_806


def test_runs_that_were_to_evaluate_only_need_no_note(tmp_path):
    more = [folders.evaluation(0, accuracy=0.5)]
    for number in range(18):
        make_run(tmp_path / str(number), rows={0: more, 1: more}, epochs=0, eval_batch_size=number)
    assert provenance.notes(read_subject([tmp_path / str(n) for n in range(18)])) == []


def test_runs_without_steps_share_one_note(tmp_path):
    for number in range(18):
        make_run(tmp_path / str(number), rows={0: [], 1: []})
    (note,) = provenance.notes(read_subject([tmp_path / str(n) for n in range(18)]))
    assert note.startswith("18 of 18 runs have no steps on record: 0, 1, 2, 3, ...")


def test_a_run_of_another_program_has_its_name_and_one_note_that_says_why_it_has_no_records(
    tmp_path,
):
    run_dir = make_run(tmp_path / "20261122-141115-hello.sh-2x1", rows={})
    (run_dir / "config.yaml").write_text("launcher: ssh\nnodes: '2'\n")
    (run_dir / "summary.json").unlink(missing_ok=True)
    subject = read_subject([run_dir])
    assert subject.entries[0].name == run_dir.name
    (note,) = provenance.notes(subject)
    assert "there are no records: only the trainer that comes with Muster writes them" in note


def test_rows_that_are_left_out_are_where_it_says(tmp_path):
    rows = [step(n) for n in range(1, 4)]
    ranks = {rank: [*rows, folders.collectives()] for rank in range(30)}
    make_run(tmp_path / "run", workers=30, rows=ranks)
    folder = tmp_path / "run" / "report"
    page.write(read_subject([tmp_path / "run"]), folder)
    assert "6 more rows are in data/collectives.csv of the report." in (
        folder / "report.md"
    ).read_text(encoding="utf-8")
    assert (folder / "data" / "collectives.csv").is_file()


def test_compare_has_no_data_beside_it_and_shows_every_row(tmp_path, capsys):
    for name in ("a", "b"):
        make_run(tmp_path / name, **{f"setting_{number}": name for number in range(250)})
    compare.main([tmp_path / "a", tmp_path / "b"], None)
    shown = capsys.readouterr().out
    assert "setting_249" in shown and "more rows" not in shown


def test_a_label_has_what_the_mode_makes_use_of(tmp_path):
    cells = [cell("a", nodes=1), cell("b")]
    path = make_study(tmp_path, cells)
    make_run(path / "runs" / "a", sync="single", workers=1, bucket_mb=25.0)
    make_run(path / "runs" / "b", sync="all_reduce", bucket_mb=0.0)
    labels = [entry.label for entry in read_subject([path]).entries]
    assert labels == ["single, 1 worker", "all_reduce, bucket mb 0, 2 workers"]


def test_a_study_without_speedup_has_no_such_section(tmp_path):
    parts = sections.build(read_subject([make_run(tmp_path / "run")]))
    assert not any(part.title == "Speed-up and efficiency" for part in parts)
