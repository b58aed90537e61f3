"""The seconds from a fault to the next step are told from records alone."""

import json
import os
from itertools import pairwise

import pytest

from launch.agent.recovery import Recovery
from launch.deadlines import AGENT_LOST_WHEN_SILENT_S
from tests.written import write

STEP_3 = {"start.json": {"step": 3, "marks_unix_s": {"step": 16.5}}}


@pytest.fixture
def run_dir(tmp_path):
    """Node 1 has its clock 100 s ahead; its rank was killed, which rank 0 noticed at 11.4 s.

    The leader, whose files these are, has its clock 7 s ahead.
    """
    first = {"index": 0, "ranks": [0], "noticed_unix_s": 12.0, "clock_offset_s": 7.0}
    second = {"index": 1, "ranks": [1], "noticed_unix_s": 113.0, "clock_offset_s": -93.0}
    for node in (first, second):
        node |= {"node": f"node{node['index']}", "code": 1, "cause": "peer", "message": "lost"}
    lost = {"rank": 0, "cause": "lost_peer", "message": "lost rank 1", "time_unix_s": 11.4}
    lost |= {"host": "node0", "code": 1, "traceback": ""}
    before = {"agents/node_00000.exit.json": first, "agents/node_00001.exit.json": second}
    before |= {"exits/rank_00000.json": lost, "exit.json": {"time_unix_s": 20.5}}
    before["start.json"] = {"step": 1, "marks_unix_s": {}}
    write(tmp_path / "attempts" / "0", before)
    return write(tmp_path, {"agents/node_00000.json": {"time_unix_s": 14.5}})


def record_at(run_dir, time_s):
    """Of rank 1; rank 0 writes down a checkpoint a little later."""
    for rank, changed_s in enumerate((time_s + 7.3, time_s + 7.0)):
        name = f"attempts/0/metrics/rank_{rank:05d}.jsonl"
        os.utime(write(run_dir, {name: ""}) / name, (changed_s, changed_s))


def test_a_step_of_the_trainer(run_dir):
    record_at(run_dir, 11.0)
    found = Recovery(run_dir, 2)
    assert found.look() is None and not (run_dir / "recovery.json").exists()
    marks = {"imports": 17.1, "rendezvous": 17.9, "checkpoint": 18.0, "step": 18.2}
    write(run_dir, {"start.json": {"step": 41, "marks_unix_s": marks}})
    assert found.look() == (
        "attempt 2: step 41 again after 7.2 s: noticed 1.0, stopped 1.5, agents 1.0, imports 2.6, "
        "rendezvous 0.8, checkpoint 0.1, step 0.2"
    )
    record = json.loads((run_dir / "recovery.json").read_text())
    assert (record["attempt"], record["fault_unix_s"], record["total_s"]) == (2, 11.0, 7.2)


@pytest.mark.parametrize(
    ("recorded_s", "fault_s"), [(-50.0, 11.4 - AGENT_LOST_WHEN_SILENT_S), (11.9, 11.4)]
)
def test_the_fault_is_not_long_before_the_first_word_of_it_and_not_after(
    run_dir, recorded_s, fault_s
):
    record_at(run_dir, recorded_s)
    assert next(Recovery(run_dir, 2)._of_fault()) == pytest.approx(fault_s)


def test_a_program_is_back_with_its_first_record_or_its_first_output(run_dir):
    write(run_dir, {"workers/rank_00000.out": "begun\n"})
    found = Recovery(run_dir, 2)
    assert found.look() is None  # the attempt before has recorded steps
    write(run_dir, STEP_3)
    line = "attempt 2: step 3 again after 5.1 s: noticed 0.6, stopped 1.5, agents 1.0, program 2.0"
    assert found.look() == line
    (run_dir / "start.json").unlink()
    (run_dir / "attempts" / "0" / "start.json").unlink()
    assert found.look().startswith("attempt 2: first output after ")


def test_where_nothing_comes_it_looks_rarely(run_dir, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr("launch.agent.recovery.running_s", lambda: now_s[0])
    found, looks = Recovery(run_dir, 2), []
    while now_s[0] < 36_000:  # as often as the leader comes by, and less often once that is long
        looks += [now_s[0]] * found.is_due()
        now_s[0] += 0.05 if now_s[0] < 60 else 1.0
    assert sum(at < 5 for at in looks) > 20 and sum(at >= 5 for at in looks) < 2_000
    assert max(after - before for before, after in pairwise(looks)) < 32


def test_no_line_where_nothing_recorded_the_fault(run_dir):
    """As when a job lost its first node, and was requeued."""
    before = run_dir / "attempts" / "0"
    write(run_dir, STEP_3)
    (before / "exit.json").unlink()
    found = Recovery(run_dir, 2)
    assert "after 5.1 s: noticed 0.6, stopped 1.0, agents 1.5, program 2.0" in found.look()
    for path in [*before.glob("agents/*"), *before.glob("exits/*")]:
        path.unlink()
    assert found.look() is None
