"""Tables have the numbers of the records, and notes where these are few or disturbed."""

import pytest

from muster.orderly_stop import ADVICE
from muster.writing import write_json
from tests.train.report import folders
from tests.train.report.folders import make_run, step, subject_of
from train.report.data import event_tables, tables
from train.report.data.frames import records
from train.report.data.subject import read_subject
from train.report.pages import verdict


def test_repeats_are_pooled_and_interval_is_over_their_means(tmp_path):
    subject = subject_of(tmp_path, *({"step_s": 0.1 + 0.01 * n} for n in range(3)))
    (row,) = records(tables.seconds(subject))
    assert (row["runs"], row["steps"]) == (3, 57)
    found = [row[name] for name in ("mean_s", "spread_s", "samples_per_s", "other_s")]
    assert found == pytest.approx([0.11, 0.01, 64 / 0.11, 0.014])


def traffic_of(path, **run):
    return records(event_tables.traffic(subject_of(path, run)))


def test_traffic_is_judged_where_gradients_are_large(tmp_path):
    found = traffic_of(tmp_path / "large", more=[folders.traffic(0), folders.traffic(1)])
    assert [row["band"] for row in found] == [None, None, "inside", "outside"]
    assert [row["ratio"] for row in found[2:]] == pytest.approx([1.05, 1.10])
    small = [step(n, payload_bytes=1000) for n in (1, 2)]
    found = traffic_of(tmp_path / "small", rows=small, more=[folders.traffic(1)])
    assert {row["band"] for row in found} == {"small"}


def test_unknown_or_small_byte_count_gives_no_ratio(tmp_path):
    old = folders.traffic(1)
    del old["control_sent_bytes"]
    sent, received = traffic_of(tmp_path / "old", more=[old])
    assert sent["ratio"] is None is sent["expected_bytes"] and received["ratio"] is not None
    few = folders.traffic(
        1, payload_received_bytes=1, control_received_bytes=0, wire_bytes_received=2,
        observed_received_bytes=40_806,
    )  # fmt: skip
    sent, received = traffic_of(tmp_path / "few", more=[few])
    assert sent["ratio"] is not None and received["ratio"] is received["ratio_wire"] is None
    assert received["observed_bytes"] == 40_806 and isinstance(received["observed_bytes"], int)


def test_a_plan_stands_beside_what_came_of_it(tmp_path):
    rows = [step(n, step_s=0.2 if n <= 10 else 0.1) for n in range(1, 21)]
    subject = subject_of(tmp_path, {"rows": rows, "more": [folders.split(10, [48, 16], 1.8)]})
    (row,) = records(event_tables.balance(subject))
    assert (row["parts"], row["predicted_gain"]) == ("48 + 16", 1.8)
    assert row["measured_gain"] == pytest.approx(2)


def test_own_work_of_a_rank_excludes_its_waits(tmp_path):
    fast = [step(n, 0, sync_s=0.05) for n in range(1, 9)]
    slow = [step(n, 1, forward_s=0.08, sync_s=0.0) for n in range(1, 9)]
    subject = subject_of(tmp_path, {"sync": "all_reduce", "rows": {0: fast, 1: slow}})
    rows = records(tables.per_rank(subject))
    assert [row["own_work_s"] for row in rows] == pytest.approx([0.071, 0.121])
    assert rows[1]["low_s"] == pytest.approx(0.121) and rows[1]["rank"] == 1


def test_ends_are_told_in_their_own_words_causes_first(tmp_path):
    path = make_run(tmp_path / "run", end={"code": 1, "message": "it broke", "time_unix_s": 1.0})
    for rank, cause in ((0, "lost_peer"), (1, "crash")):
        ended = {"rank": rank, "host": "h", "cause": cause, "message": cause}
        write_json(path / "exits" / f"rank_0000{rank}.json", ended)
    rows = records(event_tables.failures(read_subject([path])))
    assert [row["cause"] for row in rows] == ["crash", "lost_peer", "exit code 1"]


def test_ends_with_one_message_are_one_row_without_advice(tmp_path):
    text = f"stopped cleanly after step 4 (SIGINT){ADVICE}"
    path = make_run(tmp_path / "run", end={"code": 75, "message": text, "time_unix_s": 1.0})
    for rank in (0, 1):
        ended = {"rank": rank, "host": f"node{rank}", "cause": "stopped", "message": text}
        write_json(path / "exits" / f"rank_0000{rank}.json", ended)
    (row,) = records(event_tables.failures(read_subject([path])))
    assert row["who"] == "rank 0, rank 1, run" and row["host"] == "node0, node1"
    assert row["cause"] == "stopped, exit code 75"
    assert row["message"] == "stopped cleanly after step 4 (SIGINT)"


def test_the_longest_stall_and_failed_checkpoints_are_told(tmp_path):
    broken = folders.checkpoint(15, 0.004) | {"error": "disk full"}
    subject = subject_of(tmp_path, {"more": [folders.checkpoint(10, 0.002), broken]})
    (row,) = records(event_tables.checkpoints(subject))
    assert (row["checkpoints"], row["failed"]) == (2, 1)
    assert (row["stall_s"], row["largest_stall_s"]) == pytest.approx((0.003, 0.004))


def test_seconds_that_differ_widely_are_marked_as_disturbed(tmp_path):
    rows = [step(n, step_s=3.0 if n == 5 else 0.1) for n in range(1, 9)]
    warnings = verdict.build(subject_of(tmp_path, {"rows": rows})).warnings
    assert any(
        "mean 514.3 ms, median 100.0 ms" in detail
        for warning in warnings
        for detail in warning.details
    )


def test_with_dropout_runs_are_compared_with_their_like(tmp_path):
    """Dropout masks depend on the number of workers and on the split."""
    runs = {}
    for name, workers, split, first in (
        ("a", 1, "even", 2.0), ("b", 2, "even", 3.0), ("c", 2, "even", 3.0), ("d", 2, "auto", 4.0)
    ):  # fmt: skip
        runs[name] = {"sync": name, "workers": workers, "split": split}
        runs[name]["rows"] = [step(n, loss=first / n) for n in (1, 2)]
    found = records(tables.first_losses(subject_of(tmp_path, **runs)))
    rows = {row["run"].partition(",")[0]: row for row in found}
    assert (rows["c"]["largest_difference"], rows["c"]["at_step"]) == (1.0, 1)
    assert rows["c"]["reference"].startswith("a,")
    assert rows["c"]["same_workers_and_split"].startswith("b,")
    assert rows["c"]["difference_to_it"] == 0.0
    assert rows["d"]["difference_to_it"] is None is rows["b"]["difference_to_it"]


def test_hidden_communication_is_distinguished_from_waiting(tmp_path):
    steps = [step(n, comm_s=0.05, overlapped_s=0.03) for n in range(1, 6)]
    # DDP's timer also runs with one worker, which has nobody to communicate with
    subject = subject_of(tmp_path, {"rows": steps}, {"rows": steps, "workers": 1})
    alone, row = sorted(records(tables.seconds(subject)), key=lambda one: one["workers"])
    assert row["overlapped_s"] == pytest.approx(0.03) and row["exposed_s"] == pytest.approx(0.02)
    assert row["hidden_share"] == pytest.approx(3 / 5)
    assert row["waited_share"] == pytest.approx(0.02 / row["mean_s"])  # like the terminal's `sync`
    assert alone["overlapped_s"] is alone["hidden_share"] is None
