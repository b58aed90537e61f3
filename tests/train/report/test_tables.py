import pytest

from muster.errors import UsageError
from muster.writing import write_json
from tests.train.report import folders
from tests.train.report.folders import cell, make_run, make_study, step
from train.report.data import event_tables, scaling, tables
from train.report.data.subject import read_subject
from train.report.data.tables import records
from train.report.pages import verdict


def test_the_first_step_is_left_out_of_the_seconds(tmp_path):
    subject = read_subject([make_run(tmp_path / "run")])
    (row,) = records(tables.seconds(subject))
    assert row["mean_s"] == pytest.approx(0.1)
    assert row["steps"] == 19
    assert row["samples_per_s"] == pytest.approx(640)
    assert row["other_s"] == pytest.approx(0.004)


def test_losses_are_compared_with_those_of_single(tmp_path):
    off = [step(n, loss=1 / n + (1e-3 if n == 7 else 0)) for n in range(1, 21)]
    paths = [
        make_run(tmp_path / "a", sync="ddp", rows={0: off, 1: off}),
        make_run(tmp_path / "b", sync="single", workers=1),
    ]
    subject = read_subject(paths)
    rows = {row["run"]: row for row in records(tables.first_losses(subject))}
    assert rows["ddp, 2 workers"]["reference"] == "single, 1 worker"
    assert rows["ddp, 2 workers"]["largest_difference"] == pytest.approx(1e-3)
    assert rows["ddp, 2 workers"]["at_step"] == 7
    assert rows["single, 1 worker"]["reference"] is None


def test_runs_of_another_batch_are_not_compared(tmp_path):
    paths = [make_run(tmp_path / str(size), batch_size=size) for size in (32, 64)]
    assert {r["reference"] for r in records(tables.first_losses(read_subject(paths)))} == {None}


def test_repeats_are_pooled_and_their_interval_is_over_their_means(tmp_path):
    paths = [make_run(tmp_path / str(n), step_s=0.1 + 0.01 * n) for n in range(3)]
    (row,) = records(tables.seconds(read_subject(paths)))
    assert (row["runs"], row["steps"]) == (3, 57)
    assert row["mean_s"] == pytest.approx(0.11)
    assert row["spread_s"] == pytest.approx(0.01)


def test_speedup_is_against_one_worker_of_single(tmp_path):
    paths = [make_run(tmp_path / "one", sync="single", workers=1, step_s=0.3)]
    paths += [make_run(tmp_path / s, sync=s, workers=4) for s in ("ddp", "all_reduce")]
    rows = {row["series"]: row for row in records(scaling.speedup(read_subject(paths)))}
    assert rows["ddp"]["speedup"] == pytest.approx(3)
    assert rows["ddp"]["efficiency"] == pytest.approx(0.75)
    assert rows["all_reduce"]["base"] == "single, 1 worker"


def test_speedup_holds_where_the_batch_grows_with_the_workers(tmp_path):
    paths = []
    for workers in (1, 2):
        rows = [step(n, samples=32 * workers) for n in range(1, 9)]
        by_rank = dict.fromkeys(range(workers), rows)
        path = tmp_path / str(workers)
        paths.append(make_run(path, workers=workers, rows=by_rank, batch_size=32 * workers))
    rows = records(scaling.speedup(read_subject(paths)))
    assert [row["speedup"] for row in rows] == pytest.approx([1, 2])


def test_traffic_is_judged_where_gradients_are_large(tmp_path):
    path = make_run(tmp_path / "run", more=[folders.traffic(0), folders.traffic(1)])
    rows = records(event_tables.traffic(read_subject([path])))
    first, rows = rows[:2], rows[2:]
    assert {row["direction"]: row["ratio"] for row in rows} == pytest.approx(
        {"sent": 1.05, "received": 1.10}
    )
    assert [row["band"] for row in rows] == ["inside", "outside"]
    assert {row["band"] for row in first} == {None}
    small = [step(n, payload_bytes=1000) for n in (1, 2)]
    path = make_run(tmp_path / "small", rows={0: small, 1: small}, more=[folders.traffic(1)])
    assert {row["band"] for row in records(event_tables.traffic(read_subject([path])))} == {"small"}


def test_a_byte_count_that_is_not_known_gives_no_ratio(tmp_path):
    old = folders.traffic(1)
    del old["control_sent_bytes"]
    rows = records(event_tables.traffic(read_subject([make_run(tmp_path / "run", more=[old])])))
    assert rows[0]["ratio"] is None
    assert rows[0]["expected_bytes"] is None


def test_a_plan_stands_beside_what_came_of_it(tmp_path):
    rows = [step(n, step_s=0.2 if n <= 10 else 0.1) for n in range(1, 21)]
    path = make_run(
        tmp_path / "run", rows={0: rows, 1: rows}, more=[folders.split(10, [48, 16], 1.8)]
    )
    (row,) = records(event_tables.balance(read_subject([path])))
    assert (row["parts"], row["predicted_gain"]) == ("48 + 16", 1.8)
    assert row["measured_gain"] == pytest.approx(2)


def test_own_work_of_a_rank_is_what_it_does_before_it_waits(tmp_path):
    fast = [step(n, 0, sync_s=0.05) for n in range(1, 9)]
    slow = [step(n, 1, forward_s=0.08, sync_s=0.0) for n in range(1, 9)]
    path = make_run(tmp_path / "run", sync="all_reduce", rows={0: fast, 1: slow})
    rows = records(tables.per_rank(read_subject([path])))
    assert [row["own_work_s"] for row in rows] == pytest.approx([0.071, 0.121])
    assert rows[1]["low_s"] == pytest.approx(0.121) and rows[1]["rank"] == 1


def test_ends_are_told_in_their_own_words_causes_first(tmp_path):
    path = make_run(tmp_path / "run", end={"code": 1, "message": "it broke", "time_unix_s": 1.0})
    for rank, cause in ((0, "lost_peer"), (1, "crash")):
        ended = {"rank": rank, "host": "h", "cause": cause, "message": cause}
        write_json(path / "exits" / f"rank_0000{rank}.json", ended)
    rows = records(event_tables.failures(read_subject([path])))
    assert [row["cause"] for row in rows] == ["crash", "lost_peer", "exit code 1"]


def test_a_study_tells_of_its_cells(tmp_path):
    cells = [
        cell("a", settings={"sync": "ddp"}),
        cell("b", state="failed", message="no route to host", run_dir=""),
        cell("c", state="waiting", run_dir=""),
    ]
    make_run(make_study(tmp_path / "study", cells) / "runs" / "a")
    subject = read_subject([tmp_path / "study"])
    assert subject.title == "A quick study"
    assert len(subject.entries) == 1
    assert list(event_tables.failures(subject)["message"]) == ["no route to host"]


def test_predictions_stand_beside_measurements(tmp_path):
    path = make_run(tmp_path / "run")
    one = {"run": "ddp", "folders": ["run"], "predicted_s": 0.11, "measured_s": 0.1}
    write_json(path / "prediction.json", {"seconds_per_iteration": [one]})
    assert list(event_tables.prediction(read_subject([path]))["error"]) == pytest.approx([0.1])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        read_subject([tmp_path])


def test_the_longest_stall_and_failed_checkpoints_are_told(tmp_path):
    broken = folders.checkpoint(15, 0.004) | {"error": "disk full"}
    path = make_run(tmp_path / "run", more=[folders.checkpoint(10, 0.002), broken])
    (row,) = records(event_tables.checkpoints(read_subject([path])))
    assert (row["checkpoints"], row["failed"]) == (2, 1)
    assert (row["stall_s"], row["largest_stall_s"]) == pytest.approx((0.003, 0.004))


def test_seconds_that_differ_widely_are_marked_as_disturbed(tmp_path):
    rows = [step(n, step_s=3.0 if n == 5 else 0.1) for n in range(1, 9)]
    path = make_run(tmp_path / "run", rows={0: rows, 1: rows})
    message = verdict.build(read_subject([path])).warnings
    assert any("differ widely" in one and "median 100 ms" in one for one in message)


def test_with_dropout_runs_are_compared_with_their_like(tmp_path):
    """Another number of workers and another split draw other masks; the same ones do not."""
    for name, workers, split, first in (
        ("a", 1, "even", 2.0), ("b", 2, "even", 3.0), ("c", 2, "even", 3.0), ("d", 2, "auto", 4.0)
    ):  # fmt: skip
        own = [step(n, loss=first / n) for n in (1, 2)]
        rows = dict.fromkeys(range(workers), own)
        make_run(tmp_path / name, sync=name, workers=workers, split=split, rows=rows)
    found = records(tables.first_losses(read_subject([tmp_path / name for name in "abcd"])))
    rows = {row["run"].partition(",")[0]: row for row in found}
    assert rows["c"]["largest_difference"] == 1.0 and rows["c"]["reference"].startswith("a,")
    assert rows["c"]["same_workers_and_split"].startswith("b,")
    assert rows["c"]["difference_to_it"] == 0.0
    assert rows["d"]["difference_to_it"] is None is rows["b"]["difference_to_it"]


def test_hidden_communication_is_told_from_what_is_waited_for(tmp_path):
    steps = [step(n, comm_s=0.05, overlapped_s=0.03) for n in range(1, 6)]
    path = make_run(tmp_path / "run", rows={0: steps, 1: steps})
    (row,) = records(tables.seconds(read_subject([path])))
    assert row["overlapped_s"] == pytest.approx(0.03) and row["exposed_s"] == pytest.approx(0.04)
    assert row["hidden_share"] == pytest.approx(3 / 7)
    assert row["waited_share"] == pytest.approx(0.04 / row["mean_s"])
    for one in steps:  # as an older version wrote them
        del one["comm_s"], one["overlapped_s"]
    old = make_run(tmp_path / "old", rows={0: steps, 1: steps})
    (row,) = records(tables.seconds(read_subject([old])))
    assert row["overlapped_s"] is row["exposed_s"] is None


def test_runs_with_names_stand_in_the_order_of_their_study(tmp_path):
    names = {"z": "Task 1", "b": "Task 2", "a": "Task 3"}
    cells = [cell(one) | {"name": name} for one, name in names.items()]
    study = make_study(tmp_path / "study", cells)
    for one, sync in zip(names, ("single", "ddp", "all_reduce"), strict=True):
        make_run(study / "runs" / one, sync=sync, workers=1 if sync == "single" else 2)
    labels = [entry.label for entry in read_subject([study]).entries]
    assert labels == ["Task 1", "Task 2", "Task 3"]


def test_one_worker_hides_no_communication(tmp_path):
    """DDP's clock runs on one worker, too; there is nobody to communicate with."""
    for workers in (1, 2):
        rows = [step(n, comm_s=0.006, overlapped_s=0.005) for n in range(1, 9)]
        make_run(tmp_path / str(workers), workers=workers, rows=dict.fromkeys(range(workers), rows))
    alone, two = records(tables.seconds(read_subject([tmp_path / "1", tmp_path / "2"])))
    assert alone["overlapped_s"] is alone["hidden_share"] is None
    assert 0 < two["hidden_share"] < 1


def test_few_expected_bytes_give_no_ratio(tmp_path):
    few = folders.traffic(
        1, payload_sent_bytes=43_000_000, payload_received_bytes=1, control_received_bytes=0,
        wire_bytes_received=2, observed_sent_bytes=44_000_000, observed_received_bytes=40_806,
    )  # fmt: skip
    path = make_run(tmp_path / "run", more=[few])
    sent, received = records(event_tables.traffic(read_subject([path])))
    assert sent["ratio"] is not None and sent["ratio_wire"] is not None
    assert received["ratio"] is received["ratio_wire"] is None
    assert received["observed_bytes"] == 40_806 and isinstance(received["observed_bytes"], int)
