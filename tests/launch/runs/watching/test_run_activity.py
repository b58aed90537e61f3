"""A run's activity is read from its folder: nodes that connect, imports, pace, time left."""

import json
import os
import time
from pathlib import Path

from launch.runs.run_state import RunStatus
from launch.runs.watching import run_activity
from tests.written import write

RUNNING = RunStatus("running", False)


def run_folder(tmp_path: Path, **settings) -> Path:
    config = {"nodes": 2, "task": "synthetic", "epochs": 3, **settings}
    lines = (f"{name}: {value}\n" for name, value in config.items())
    return write(tmp_path, {"config.yaml": "".join(lines)})


def agents(run: Path, count: int) -> None:
    for node in range(count):
        record = {"node": f"node{node}", "ranks": [2 * node, 2 * node + 1]}
        write(run, {f"agents/node_{node:05d}.json": record})


def steps(run: Path, count: int, loss: float | None = 0.5):
    records = []
    for step in range(1, count + 1):
        record = {"step": step, "epoch": 1, "loss": loss, "step_s": 0.1, "kind": "step"}
        records.append(json.dumps(record))
        if step % 10 == 0:
            records.append(json.dumps({"step": step, "rank": 0, "kind": "collectives"}))
    records.append('{"step": 1, "epo')  # half written
    write(run, {"metrics/rank_00000.jsonl": "\n".join(records)})


def activity(run: Path, state: RunStatus = RUNNING) -> list[str]:
    return list(run_activity.lines(run, state))


def test_nodes_that_are_missing_are_named(tmp_path):
    run = run_folder(tmp_path)
    assert "its nodes are starting" in activity(run)[0]
    meeting = {"text": "waiting for node 2, node 3", "since_unix_s": time.time() - 600}
    write(run, {"agents/meeting.json": meeting})
    assert activity(run) == [
        "nodes are connecting: node 0 has been waiting for node 2, node 3 for 10 min"
    ]


def test_workers_without_a_step_import(tmp_path):
    run = run_folder(tmp_path)
    agents(run, 2)
    (line,) = activity(run)
    assert line.startswith("4 workers on 2 nodes started ")
    assert "no step yet: " in line


def test_another_program_is_not_expected_to_leave_records(tmp_path):
    run = run_folder(tmp_path)
    (run / "config.yaml").write_text("nodes: 2\n")
    agents(run, 2)
    assert " s ago; this program " in activity(run)[0]


def test_pace_time_left_and_the_age_of_the_last_checkpoint(tmp_path):
    run = run_folder(tmp_path, max_steps=1000, checkpoint_every=100)
    agents(run, 2)
    steps(run, 60)
    write(run, {"start.json": {"step": 1, "total_steps": 1000}})
    pace = "step 60 of 1000, 10 steps per second, 94 s left"
    assert activity(run) == [pace, "no checkpoint yet"]
    saved = run / "checkpoints" / "step_00000050"
    saved.mkdir(parents=True)
    (run / "checkpoints" / "step_00000060.host.1.partial").mkdir()
    os.utime(saved, (time.time() - 600,) * 2)
    assert activity(run)[1] == "last checkpoint after step 50, 10 min ago"
    assert run_activity.one_line(run, RUNNING) == "; ".join(activity(run))


def test_time_left_is_unknown_without_number_of_last_step(tmp_path):
    run = run_folder(tmp_path)
    steps(run, 49)
    assert activity(run)[0].startswith("step 49, 10 steps per second, ")


def test_steps_whose_loss_is_no_number_are_counted(tmp_path):
    run = run_folder(tmp_path)
    steps(run, 49, loss=None)
    assert activity(run)[0].startswith("step 49, 10 steps per second, ")


def test_fast_run_that_stops_recording_is_reported_silent(tmp_path):
    run = run_folder(tmp_path, max_steps=1000)
    steps(run, 60)
    os.utime(run / "metrics" / "rank_00000.jsonl", (time.time() - 300,) * 2)
    assert activity(run)[-1] == (
        "no step recorded for 5 min: it is evaluating, writing, or hanging; "
        "muster jobs stacks shows where each rank is"
    )
    suspended = RunStatus("suspended", False, "job 12")
    assert "no step recorded" not in run_activity.one_line(run, suspended)


def test_waiting_run_shows_its_reason_and_ended_one_none(tmp_path):
    run = run_folder(tmp_path)
    steps(run, 60)
    why = ("Resources: ...", "expected start: ...")
    waiting = RunStatus("pending", False, "job 12; Resources", why)
    assert activity(run, waiting) == [*why]
    assert run_activity.one_line(run, waiting) == "Resources: ..."
    over = RunStatus("failed", True, "exit code 1: boom")
    assert activity(run, over) == [] and run_activity.one_line(run, over) == "exit code 1: boom"
