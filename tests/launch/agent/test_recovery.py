"""The seconds from a fault to the next step are told from times that were recorded."""

import json
from itertools import pairwise

import pytest

from launch.agent.recovery import Recovery
from launch.ends import End, Kind
from tests.written import write

STEP_3 = {"start.json": {"step": 3, "marks_unix_s": {"step": 23.5}}}


@pytest.fixture
def run_dir(tmp_path):
    """A rank was killed at 18.0 s, by the leader's clock."""
    end = End(Kind.KILLED, "node1", 18.0, 1, signal=9).to_json()
    ended = {"exit.json": {"time_unix_s": 20.5, "noticed_unix_s": 19.0, "end": end}}
    return write(tmp_path, {f"attempts/0/{name}": record for name, record in ended.items()})


def recovery(run_dir, output=False):
    """Of a run whose node 0 has its clock 7 s behind the leader's."""
    return Recovery(run_dir, 2, lambda: output, lambda: 7.0, connected_unix_s=21.5)


def test_recovery_of_the_trainer_ends_with_a_step(run_dir):
    watch = recovery(run_dir)
    assert watch.look() is None
    assert not (run_dir / "recovery.json").exists()
    marks = {"imports": 17.1, "rendezvous": 17.9, "checkpoint": 18.0, "step": 18.2}
    write(run_dir, {"start.json": {"step": 41, "marks_unix_s": marks}})
    assert watch.look() == (
        "attempt 2: step 41 again after 7.2 s: noticed 1.0, stopped 1.5, agents 1.0, imports 2.6, "
        "rendezvous 0.8, checkpoint 0.1, step 0.2"
    )
    record = json.loads((run_dir / "recovery.json").read_text())
    assert (record["attempt"], record["fault_unix_s"], record["total_s"]) == (2, 18.0, 7.2)


def test_recovery_is_reported_at_first_record_or_first_output(run_dir):
    write(run_dir, {"attempts/0/start.json": {"step": 1, "marks_unix_s": {}}})
    assert recovery(run_dir, output=True).look() is None  # the attempt before has recorded steps
    write(run_dir, STEP_3)
    line = "attempt 2: step 3 again after 12.5 s: noticed 1.0, stopped 1.5, agents 1.0, program 9.0"
    assert recovery(run_dir).look() == line
    (run_dir / "start.json").unlink()
    (run_dir / "attempts" / "0" / "start.json").unlink()
    assert recovery(run_dir).look() is None
    line = recovery(run_dir, output=True).look()
    assert line.startswith("attempt 2: first output after ")


def test_recovery_without_time_of_the_fault_counts_from_its_notice(run_dir):
    """As of a rank that others had waited for in vain."""
    end = End(Kind.ENDED, "node1", 0.0, 1, message="hung").to_json()
    ended = {"time_unix_s": 20.5, "noticed_unix_s": 19.0, "end": end}
    write(run_dir, {"attempts/0/exit.json": ended, **STEP_3})
    line = "attempt 2: step 3 again after 11.5 s: noticed 0.0, stopped 1.5, agents 1.0, program 9.0"
    assert recovery(run_dir).look() == line


def test_recovery_looks_become_rarer(run_dir, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr("launch.agent.recovery.running_s", lambda: now_s[0])
    watch = recovery(run_dir)
    looks = []
    while now_s[0] < 36_000:  # as often as the leader comes by, and less often once that is long
        looks += [now_s[0]] * watch.is_due()
        now_s[0] += 0.05 if now_s[0] < 60 else 1.0
    assert sum(at < 5 for at in looks) > 20
    assert sum(at >= 5 for at in looks) < 2_000
    assert max(after - before for before, after in pairwise(looks)) < 32


def test_recovery_looks_only_after_workers_could_start(run_dir):
    watch = Recovery(run_dir, 2, lambda: True, lambda: 0.0)
    assert not watch.is_due()


def test_no_line_where_nothing_recorded_the_fault(run_dir):
    """As when a job lost its first node, and was requeued."""
    write(run_dir, STEP_3)
    record = run_dir / "attempts" / "0" / "exit.json"
    record.write_text(json.dumps({"time_unix_s": 20.5}))
    assert recovery(run_dir).look() is None
    record.unlink()
    assert recovery(run_dir).look() is None
