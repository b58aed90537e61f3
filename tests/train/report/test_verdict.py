"""A report's first statements are true: findings that were not measured are left out."""

import math
import re
import shutil

import pytest

from muster import run_files
from muster.writing import write_json
from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step, subject_of
from train.report.data.frames import frame, records
from train.report.data.quantities import Unit
from train.report.data.subject import read_subject
from train.report.pages import drawing, head, page, provenance, sections, verdict


def verdict_on(path, **step_s):
    """Return the verdict on runs with these seconds per step, on four workers (`single`: one)."""
    runs = {}
    for mode, seconds in step_s.items():
        spread = enumerate([0.98, 1.02, 1.0, 1.01, 0.99, 1.0, 1.0])
        rows = [step(1), *(step(n + 2, step_s=seconds * part) for n, part in spread)]
        runs[mode] = {"sync": mode, "workers": 1 if mode == "single" else 4, "rows": rows}
    return verdict.build(subject_of(path, **runs))


def test_each_run_has_a_row_with_what_is_known(tmp_path):
    found = verdict_on(tmp_path, single=0.4, all_reduce=0.1, ddp=0.2)
    rows = rows_by_run(found)
    assert rows["ddp, 4 workers"]["time_per_step"] == "200.0 ± 2.4 ms"
    assert rows["all_reduce, 4 workers"]["speedup"] == pytest.approx(4)
    assert rows["all_reduce, 4 workers"]["efficiency"] == pytest.approx(1)
    assert rows["single, 1 worker"]["losses"] == "reference"
    assert rows["ddp, 4 workers"]["losses"] == "equal"
    assert "single, 1 worker" in found.under[0]
    assert found.warnings == []


def rows_by_run(verdict):
    return {row["run"]: row for row in records(verdict.table)}


SINGLE = {"sync": "single", "workers": 1}


def test_losses_are_called_equal_only_where_they_are(tmp_path):
    far = [step(n, loss=2.0 / n) for n in range(1, 9)]
    broken = [step(n, loss=1.0 / n if n < 5 else float("nan")) for n in range(1, 9)]
    subject = subject_of(
        tmp_path, SINGLE, {}, {"sync": "all_reduce", "rows": far},
        {"sync": "gather_scatter", "rows": broken}, {"sync": "accelerate", "lr": 9.0},
    )  # fmt: skip
    found = rows_by_run(verdict.build(subject))
    assert {name.partition(",")[0]: row["losses"] for name, row in found.items()} == {
        "single": "reference", "ddp": "equal", "all_reduce": "within 1",
        "gather_scatter": "not a number", "accelerate": None,  # another lr: not compared
    }  # fmt: skip


def test_a_row_of_repeats_has_their_means_and_the_furthest_losses(tmp_path):
    """Each repeat is compared with the run that has the same seed."""
    far = [step(n, loss=1.0 / n + 0.5) for n in range(1, 21)]
    other = {"sync": "all_reduce", "seed": 2}
    subject = subject_of(tmp_path, SINGLE, {}, other, {"rows": far, "seed": 2})
    two = rows_by_run(verdict.build(subject))["ddp, 2 workers"]
    assert two["last_batch_loss"] == pytest.approx(1 / 20 + 0.25)
    assert two["losses"] == "within 0.5 of all_reduce"


def test_runs_of_other_lengths_have_a_column_of_steps(tmp_path):
    long, short = {"steps": 40}, {"steps": 10, "sync": "all_reduce"}
    found = verdict.build(subject_of(tmp_path / "a", a=long, b=short))
    assert {row["steps"] for row in rows_by_run(found).values()} == {40, 10}
    assert ["10 and 40" in one.sentence for one in found.warnings] == [True]
    same = verdict.build(subject_of(tmp_path / "b", a=long, b=long))
    assert same.warnings == [] and set(same.table["steps"]) == {40}


def test_a_run_that_failed_has_a_row_that_says_so(tmp_path):
    failed = {"rows": {}, "end": {"code": 1, "message": "no memory"}}
    row = rows_by_run(verdict.build(subject_of(tmp_path, a=SINGLE, b=failed)))["ddp, 2 workers"]
    assert row["state"] == "failed (1)" and row["time_per_step"] is None
    whole = subject_of(tmp_path / "whole", a={}, b={"sync": "all_reduce"})
    assert "state" not in verdict.build(whole).table


def test_runs_that_only_evaluate_have_the_seconds_of_that(tmp_path):
    subject = subject_of(tmp_path, {"rows": [folders.evaluation(0, accuracy=0.5)], "epochs": 0})
    assert provenance.notes(subject) == []  # it was not meant to have steps
    (one,) = records(verdict.build(subject).table)
    assert one["time_per_evaluation"] == "500 ms" and one["accuracy"] == 0.5
    assert one["evaluated_samples_per_s"] == pytest.approx(200)


def test_a_study_of_both_has_the_seconds_of_each(tmp_path):
    """As in BSC's study, some runs train and others evaluate."""
    made = folders.evaluation(0, accuracy=0.5, eval_loss=0.7)
    subject = subject_of(
        tmp_path, {"workers": 2},
        *({"workers": n, "sync": "accelerate", "rows": [made | {"eval_s": 1 / n}]}
          for n in (1, 2)),
    )  # fmt: skip
    found = verdict.build(subject)
    rows = rows_by_run(found)
    assert rows["ddp, 2 workers"]["time_per_step"] == "100 ms"
    two = rows["accelerate, 2 workers"]
    assert (two["time_per_step"], two["time_per_evaluation"]) == (None, "0.5 s")
    assert two["speedup"] == pytest.approx(2) and "last_batch_loss" not in found.table
    assert "accelerate, 1 worker" in found.under[0]


def test_nodes_that_one_machine_simulated_and_shared_cores_are_said(tmp_path):
    """Two workers share a core, so they do not behave like the same number of nodes."""
    for launcher, is_one in (("local", True), ("ssh", False)):
        path = make_run(tmp_path / launcher, workers=8)
        for host in range(8):
            own = folders.ENVIRONMENT | {"host": f"node{host}"}
            write_json(path / "environment" / f"node{host}.json", own)
        write_json(path / "job.json", {"launcher": launcher})
        found = verdict.build(read_subject([path]))
        for value in ("A processor", "16.0 GiB"):
            assert value in found.measured
        for value in ("8 nodes", "4 cores."):
            assert (value in found.measured) is is_one
        hosts = provenance.hosts(read_subject([path]))
        assert len(hosts) == (1 if is_one else 8)
        # a simulated link has the testbed's rate, whatever its interface reports
        assert all((host["interface"] is None) == is_one for host in hosts)
        assert [one.details for one in found.warnings] == (
            [["8 workers on 4 cores: ddp"]] if is_one else []
        )


def test_an_efficiency_that_can_hardly_be_is_warned_of(tmp_path):
    (warning,) = verdict_on(tmp_path, single=0.9, ddp=0.1, all_reduce=0.25).warnings
    (detail,) = warning.details
    assert (
        detail.startswith("single, 1 worker: ") and "ddp, 4 workers " in detail and "225%" in detail
    )


def test_quantities_are_written_as_people_write_them():
    means, lows, highs = [0.0067351, 0.0851], [0.00662, math.nan], [0.00685, math.nan]
    texts = drawing.with_intervals(means, lows, highs, Unit("ms", 1e-3))
    assert texts == ["6.74 ± 0.12 ms", "85.10 ms"]  # the same number of decimals in each row
    assert drawing.column([10057.7, 10058, 871.24]) == ["10\xa0058", "10\xa0058", "871"]
    assert drawing.column([0.5, 0.25, math.nan]) == ["0.50", "0.25", "none"]
    assert drawing.column([0.1, 3e-5]) == ["0.1", "3e-05"]  # a small number is not lost
    assert drawing.column([18.94, 0.003], is_time=True) == ["18.94", "<0.01"]
    rates = ("2.5gbit", "100mbit", "9600bit", "unlimited")
    written = ["2.5 Gbit/s", "100 Mbit/s", "9600 bit/s", "unlimited"]
    assert [drawing.link_rate(one) for one in rates] == written


def test_the_same_note_of_many_runs_and_ranks_is_one(tmp_path):
    (note,) = provenance.notes(subject_of(tmp_path / "none", *({"rows": []} for _ in range(18))))
    assert note.startswith("18 of 18 ") and "(run0, run1, run2, run3, ...)" in note
    bare = {"rows": [{"kind": "step", "step": n, "loss": 1.0} for n in range(1, 5)]}
    found = provenance.notes(subject_of(tmp_path / "bare", bare, bare))
    (note,) = [one for one in found if one.endswith(" step_s")]
    assert note.startswith("2 of 2 ") and "(run0, run1): 4 " in note


def test_foreign_program_run_has_its_name_and_one_note(tmp_path):
    run_dir = make_run(tmp_path / "20261122-141115-hello.sh-2x1", rows={}, end={})
    (run_dir / "config.yaml").write_text("launcher: ssh\nnodes: '2'\n")
    subject = read_subject([run_dir])
    assert subject.entries[0].name == run_dir.name
    found = verdict.build(subject)
    assert found.warnings == [] and "muster.record" in found.remarks[0]


def test_where_agents_ran_the_report_has_their_hosts(tmp_path):
    run_dir = make_run(tmp_path / "hello", rows={}, end={})
    shutil.rmtree(run_dir / "environment")
    write_json(run_dir / "job.json", {"launcher": "ssh", "started_unix_s": 1.0})
    for node in (0, 1):
        end = {"index": node, "node": f"node{node}", "host": f"host{node}", "code": 0}
        end |= {"cause": "done", "message": "", "ends": [], "time_unix_s": 2.0}
        write_json(run_files.AGENT_END.path(run_dir, node=node), end)
    subject = read_subject([run_dir])
    assert provenance.hosts(subject) == [{"host": "host0"}, {"host": "host1"}]
    assert "on 2 hosts" in verdict.build(subject).measured


def test_cut_table_has_first_rows_of_each_run():
    sizes = {"a": 70, "b": 3, "c": 70}
    rows = [{"run": run, "number": n} for run, size in sizes.items() for n in range(size)]
    part = sections.Section("collectives", frame(rows), "Collectives", longest=40)
    numbers = {run: list(one["number"]) for run, one in part.rows.groupby("run")}
    assert numbers == {"a": list(range(19)), "b": [0, 1, 2], "c": list(range(18))}
    assert part.more_rows == 103 and list(part.rows.index) == sorted(part.rows.index)


def test_other_numbers_of_tokens_are_no_equal_work(tmp_path):
    def rows(tokens, first=1000):  # the first step's seconds are not shown
        return [{**step(n), "local_tokens": tokens if n > 1 else first} for n in range(1, 4)]

    alike = subject_of(tmp_path / "alike", {"rows": rows(1000)}, {"rows": rows(1010, first=4000)})
    assert verdict.build(alike).warnings == []
    padded = subject_of(tmp_path / "padded", {"rows": rows(1000)}, {"rows": rows(2000)})
    (warning,) = verdict.build(padded).warnings
    assert [float(detail.split()[0]) for detail in warning.details] == [1000 / 16, 2000 / 16]


def test_label_and_table_have_the_settings_that_differ(tmp_path):
    other = {"sync": "all_reduce", "bucket_mb": 0.0, "overlap": False}
    subject = subject_of(tmp_path, SINGLE | {"bucket_mb": 25.0}, other)
    labels = [entry.label for entry in subject.entries]
    assert labels == [
        "single, bucket mb 25, 1 worker",
        "all_reduce, bucket mb 0, no overlap, 2 workers",
    ]
    first = sections.build(subject)[0]
    assert "bucket_mb" in first.shown and "precision" not in first.shown
    assert list(first.table["bucket_mb"]) == [25.0, 0.0]


def test_changed_settings_stand_apart_from_defaults(tmp_path):
    run = {"batch_size": 32, "lr": 5e-5, "keep_last": 2, "data_workers": 3}
    subject = subject_of(tmp_path, run)
    chosen, default = provenance.settings(subject)
    assert {"batch_size", "data_workers"} <= {row["setting"] for row in chosen}
    assert {"lr", "keep_last"} <= {row["setting"] for row in default}
    text = page.html(subject, sections.build(subject))
    places = [text.index(one) for one in ("<td>data_workers<", 'class="defaults"', "<td>lr<")]
    assert places == sorted(places)


def test_the_data_has_seconds_and_rows_that_the_page_shortens(tmp_path):
    folder = tmp_path / "report"
    page.write(subject_of(tmp_path, short={"step_s": 0.006735, "workers": 46}), folder)
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert "mean (ms)" in text and "6.735" in text and "0.006735" not in text
    assert "0.006735" in (folder / "data" / "seconds.csv").read_text(encoding="utf-8")
    assert re.search(r"\b6 more rows .*data/ranks.csv", text)
    assert (folder / "data" / "ranks.csv").is_file()
    long = subject_of(tmp_path, long={"step_s": 4.37})
    text = page.markdown(long, sections.build(long))
    assert "mean (s)" in text and "mean (ms)" not in text


def test_a_text_from_before_the_runs_is_marked_as_such(tmp_path):
    texts = {"implementation": "As it is.", "discussion": "Of what was measured."}
    before = {"implementation": "As it is.", "discussion": "It scales."}
    more = {"texts": texts, "texts_before": before, "source": "configs/studies/<a>.yaml"}
    subject = read_subject([make_study(tmp_path, [cell("a")], **more)])
    text, plain = page.html(subject, []), page.markdown(subject, [])
    assert list(subject.sources) == ["implementation"]
    source = "configs/studies/&lt;a&gt;.yaml"  # before the text that is taken from it
    assert text.count(source) == 1
    heading, named, own, other = map(
        text.index, ('id="implementation"', source, "<p>As it is.</p>", 'id="discussion"')
    )
    assert heading < named < own < other
    between = plain.partition("## Implementation")[2].partition("As it is.")[0]
    assert ".yaml" in between and plain.count(between.strip()) == 1


def test_study_texts_stand_beside_results_and_links_resolve(tmp_path):
    texts = {"question": "Which <mode>?", "discussion": "One.\n\nTwo."}
    path = make_study(tmp_path, [cell("a"), cell("b")], texts=texts)
    for name in ("a", "b"):
        make_run(path / "runs" / name, sync="single" if name == "a" else "ddp")
    subject = read_subject([path])
    parts = sections.build(subject)
    text, plain = page.html(subject, parts), page.markdown(subject, parts)
    assert "<p>Which &lt;mode&gt;?</p>" in text and "<p>One.</p>\n<p>Two.</p>" in text
    assert text.index('class="verdict"') < text.index('id="question"') < text.index('<h2 id="what-')
    assert text.index('id="losses"') < text.index('id="discussion"') < text.index('id="hardware"')
    assert plain.index("## Question") < plain.index("## Losses") < plain.index("## Discussion")
    assert "Implementation" not in text + plain and not subject.sources
    links = re.findall('<a href="#([^"]+)">', text)
    assert {"seconds-per-iteration", "hardware", "repeat"} <= set(links)
    assert all(text.count(f'id="{link}"') == 1 for link in links)


def test_report_head_shows_runs_time_duration_and_commit(tmp_path):
    (what, state, when, commit, torch) = head.facts(subject_of(tmp_path / "one", {"workers": 4}))
    assert (what, state) == ("quickstart, ddp, 4 workers", "done")
    assert when == "2027-01-15 08:00 UTC, 61 s"
    assert (commit, torch) == ("commit 36b7e834", "torch 2.13.0")
    failed = {"rows": {}, "end": {"code": 1, "message": "no memory", "time_unix_s": 1.0}}
    several = head.facts(subject_of(tmp_path / "two", {}, {"sync": "single"}, failed))
    assert "2 of 3 runs done, 1 failed (1)" in several
    assert "2027-01-15 08:00 UTC, 3 min of runs" in several


@pytest.mark.parametrize(
    ("code", "cause", "state"),
    [(130, "signal", "stopped"), (143, "program", "failed (143)"), (75, "stopped", "stopped")],
)
def test_a_run_that_was_asked_to_stop_has_not_failed(tmp_path, code, cause, state):
    end = {"code": code, "message": "", "time_unix_s": 1.0, "cause": cause}
    assert head.states(subject_of(tmp_path, {"end": end})) == state


def test_runs_of_a_study_that_stopped_or_wait_are_counted_once(tmp_path):
    ends = {"a": None, "b": {"code": 75, "message": "stopped", "time_unix_s": 1.0}}
    states = {"a": "done", "b": "stopped", "c": "waiting", "d": "waiting", "e": "done"}
    path = make_study(tmp_path, [cell(name, state=state) for name, state in states.items()])
    for name, end in ends.items():
        make_run(path / "runs" / name, end=end)
    found = head.states(read_subject([path]))
    assert found == "1 of 5 runs done, 1 stopped, 2 waiting, 1 gone"


def test_a_run_without_times_has_a_first_line_without_them(tmp_path):
    path = make_run(tmp_path / "run")
    for name in ("job.json", "exit.json"):
        (path / name).unlink()
    assert not [fact for fact in head.facts(read_subject([path])) if "UTC" in fact]
    assert head.ended_at(read_subject([make_run(tmp_path / "timed")])) == "2027-01-15T08:01:01Z"


def test_the_answer_is_in_the_first_columns(tmp_path):
    table = verdict_on(tmp_path, single=0.4, ddp=0.2).table
    assert list(table)[:4] == ["run", "time_per_step", "speedup", "losses"]


def test_long_tables_are_in_the_appendix_behind_all_else(tmp_path):
    traffic = [folders.traffic(epoch) for epoch in range(1, 8)]
    many = [("all_reduce", [10], "float32", 40, "")] * 13
    collectives = folders.collectives() | {"collectives": many}
    subject = subject_of(tmp_path, {"more": [*traffic, collectives]})
    text = page.html(subject, sections.build(subject))
    at = text.index('<h2 id="appendix">')
    assert text.index('id="repeat"') < at
    assert at < text.index("ratio wire") and at < text.index("dtype")
    assert text.index('id="traffic"') < at  # its figure is in the body
    links = re.findall('<a href="#([^"]+)">', text)
    assert all(text.count(f'id="{link}"') == 1 for link in links)


def test_short_tables_stay_in_the_body(tmp_path):
    subject = subject_of(tmp_path, {"more": [folders.traffic(1), folders.collectives()]})
    assert "Appendix" not in page.html(subject, sections.build(subject))
