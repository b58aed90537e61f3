"""The seconds from a fault to the next step are computed from recorded times."""

import json

import pytest

from launch.agent import recovery
from launch.ends import End, Kind
from tests.written import write

STEP_3 = {"start.json": {"step": 3, "time_unix_s": 23.5}}


@pytest.fixture
def run_dir(tmp_path):
    """A run folder in which a rank was killed at 18.0 s by the leader's clock."""
    end = End(Kind.KILLED, "node1", 18.0, 1, signal=9).to_json()
    return write(tmp_path, {"attempts/0/exit.json": {"time_unix_s": 20.5, "end": end}})


def report(run_dir, has_output=False):
    """The report of a run in which node 0's clock is 7 s behind the leader's."""
    fault_unix_s = recovery.recorded_fault_unix_s(run_dir, 2)
    return recovery.report(run_dir, 2, fault_unix_s, has_output, clock_offset_s=7.0)


def test_recovery_of_the_trainer_ends_with_a_step(run_dir):
    assert report(run_dir) is None
    assert not (run_dir / "recovery.json").exists()
    write(run_dir, {"start.json": {"step": 41, "time_unix_s": 18.2}})
    assert report(run_dir) == "attempt 2: step 41 again after 7.2 s"
    record = json.loads((run_dir / "recovery.json").read_text())
    assert record == {"attempt": 2, "fault_unix_s": 18.0, "total_s": 7.2}


def test_recovery_is_reported_at_first_record_or_first_output(run_dir):
    write(run_dir, {"attempts/0/start.json": {"step": 1, "time_unix_s": 2.0}})
    assert report(run_dir, has_output=True) is None  # the previous attempt recorded steps
    write(run_dir, STEP_3)
    assert report(run_dir) == "attempt 2: step 3 again after 12.5 s"
    (run_dir / "start.json").unlink()
    (run_dir / "attempts" / "0" / "start.json").unlink()
    assert report(run_dir) is None
    assert report(run_dir, has_output=True).startswith("attempt 2: first output after ")


def test_recovery_without_time_of_fault_counts_from_the_attempts_end(run_dir):
    """For example, a rank that others had waited for in vain has no such time."""
    end = End(Kind.UNRECORDED, "node1", 0.0, 1, message="hung").to_json()
    write(run_dir, {"attempts/0/exit.json": {"time_unix_s": 20.5, "end": end}, **STEP_3})
    assert report(run_dir) == "attempt 2: step 3 again after 10.0 s"


def test_recovery_has_no_fault_where_nothing_recorded_one(run_dir):
    """For example, the job lost its first node and was requeued."""
    record = run_dir / "attempts" / "0" / "exit.json"
    record.write_text(json.dumps({"time_unix_s": 20.5}))
    assert recovery.recorded_fault_unix_s(run_dir, 2) is None
    record.unlink()
    assert recovery.recorded_fault_unix_s(run_dir, 2) is None
