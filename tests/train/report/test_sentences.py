"""A sentence is made where its numbers bear it, and not where they do not."""

import json

from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step
from train.report import compare
from train.report.data import event_tables, rank_work, scaling, tables
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


def ranks_of(path, slow_s):
    """Two ranks; the second one's seconds before it can wait for others, by step."""
    fast = [step(n, 0, forward_s=0.01) for n in range(1, 9)]
    slow = [step(n, 1, forward_s=seconds) for n, seconds in zip(range(1, 9), slow_s, strict=True)]
    path = make_run(path, sync="all_reduce", rows={0: fast, 1: slow})
    return sentences.of_ranks(rank_work.per_rank(read_subject([path])))


def test_others_wait_for_a_rank_only_where_its_work_is_longer_beyond_chance(tmp_path):
    assert ranks_of(tmp_path / "steady", [0.05] * 8)
    assert not ranks_of(tmp_path / "once", [0.01] * 7 + [0.2])


def predicted(path, measured_s):
    """The section on a prediction of 100 ms on 4 workers and of 90 ms on 1024."""
    cells = {"4": {"predicted_s": 0.1, "measured_s": measured_s}, "1024": {"predicted_s": 0.09}}
    facts = {"seconds_per_iteration": {"ddp": cells}, "words": ["1024 workers are fast."]}
    make_study(path, [cell("a")])
    make_run(path / "runs" / "a")
    (path / "prediction.json").write_text(json.dumps(facts), encoding="utf-8")
    (part,) = [
        one for one in sections.build(read_subject([path])) if one.title.startswith("Predicted")
    ]
    return part


def test_a_model_that_is_far_off_predicts_nothing_that_was_not_measured(tmp_path):
    far = predicted(tmp_path / "far", 0.25)
    assert far.table.column("workers") == [4]
    assert any("nothing is shown for what was not measured" in line for line in far.sentences)
    assert not any("1024" in line for line in far.sentences)
    assert "does not explain" in far.conclusion
    near = predicted(tmp_path / "near", 0.11)
    assert near.table.column("workers") == [4, 1024]
    assert "1024 workers are fast." in near.sentences
    assert near.conclusion == "The model of cost is within 9% of all that was measured."


def test_traffic_that_is_not_judged_has_no_conclusion(tmp_path):
    small = [step(n, payload_bytes=1000) for n in range(1, 9)]
    for name, rows, told in (("large", None, True), ("small", {0: small, 1: small}, False)):
        path = make_run(tmp_path / name, rows=rows, more=[folders.traffic(1)])
        (part,) = [one for one in sections.build(read_subject([path])) if one.title == "Traffic"]
        assert (part.conclusion != "") is told
        if told:
            assert part.conclusion == "Interfaces counted 1.05 to 1.10 times the expected bytes."


def test_a_doubtful_efficiency_concludes_nothing(tmp_path):
    for name, base_s, told in (("sound", 0.2, True), ("slowed", 0.9, False)):
        make_run(tmp_path / name / "one", sync="single", workers=1, step_s=base_s)
        make_run(tmp_path / name / "four", workers=4)
        subject = read_subject([tmp_path / name / "one", tmp_path / name / "four"])
        (part,) = [one for one in sections.build(subject) if one.title.startswith("Speed-up")]
        assert (part.conclusion != "") is told


def test_the_same_note_of_many_runs_and_ranks_is_one(tmp_path):
    old = [{"step": n, "loss": 1.0} for n in range(1, 5)]
    for name in ("a", "b"):
        make_run(tmp_path / name, rows={0: old, 1: old})
    found = provenance.notes(read_subject([tmp_path / "a", tmp_path / "b"]))
    (note,) = [one for one in found if "have no step_s" in one]
    assert note.startswith("2 of 2 runs (a, b): 4 step record(s) have no step_s")
    (alone,) = [one for one in provenance.notes(read_subject([tmp_path / "a"])) if "step_s" in one]
    assert alone.startswith("a, 2 times: ")


def test_what_was_set_stands_apart_from_defaults(tmp_path):
    path = make_run(tmp_path / "run", batch_size=32, lr=5e-5, keep_last=2, data_workers=3)
    chosen, default = provenance.settings(read_subject([path]))
    assert {"batch_size", "data_workers"} <= {row["setting"] for row in chosen}
    assert {"lr", "keep_last"} <= {row["setting"] for row in default}
    text = page.html(read_subject([path]), sections.build(read_subject([path])))
    assert text.index("Settings that all runs share") < text.index('<details class="defaults">')


def test_settings_in_which_runs_differ_stand_in_the_table_of_runs(tmp_path):
    for number, mb in enumerate((5.0, 25.0)):
        make_run(tmp_path / str(number), bucket_mb=mb)
    first = sections.build(read_subject([tmp_path / "0", tmp_path / "1"]))[0]
    assert "bucket_mb" in first.shown and "precision" not in first.shown
    assert first.table.column("bucket_mb") == [5.0, 25.0]


def test_short_seconds_are_shown_in_milliseconds_and_kept_in_the_data(tmp_path):
    path = make_run(tmp_path / "run", step_s=0.006735)
    folder = tmp_path / "report"
    page.write(read_subject([path]), folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "mean_ms" in text and "6.735" in text and "0.006735" not in text
    assert "0.006735" in (folder / "data" / "seconds.csv").read_text(encoding="utf-8")
    long = make_run(tmp_path / "long", step_s=4.37)
    text = page.markdown(read_subject([long]), sections.build(read_subject([long])))
    assert "mean_s" in text and "mean_ms" not in text


def test_gains_of_several_series_are_one_table_and_no_list_of_lines(tmp_path):
    make_run(tmp_path / "one", sync="single", workers=1, step_s=0.2)
    for name in ("ddp", "all_reduce"):
        make_run(tmp_path / name, sync=name, workers=4)
    few = scaling.speedup(read_subject([tmp_path / "one", tmp_path / "ddp"]))
    (line,) = sentences.of_speedup(few)
    assert "4 workers do 2.00 times" in line
    many = scaling.speedup(
        read_subject([tmp_path / "one", tmp_path / "ddp", tmp_path / "all_reduce"])
    )
    assert sentences.of_speedup(many) == []
