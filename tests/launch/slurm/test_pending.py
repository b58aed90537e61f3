"""A reason of Slurm's is said with what it means and what would change it."""

from datetime import datetime

import pytest

from launch.slurm import pending
from launch.slurm.controller import FORGOTTEN, UNKNOWN, JobState, end_unix_s, job_states
from launch.slurm.submitted_job import Watcher
from tests.launch.slurm.fakes import FakeSlurm

DOWN = "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions"


@pytest.mark.parametrize(
    ("reason", "means", "change"),
    [
        ("Resources", "too few nodes are free", "a shorter --time may fit in earlier"),
        ("Priority", "jobs of a higher priority wait", "sprio shows the priorities"),
        ("BeginTime", "it is not to start before a time", "JobId=12 StartTime=now"),
        ("JobHeldUser", "held by its user", "scontrol release 12"),
        ("JobHeldAdmin", "held by an administrator", "ask them"),
        ("ReqNodeNotAvail,_UnavailableNodes:node3", "(node3)", "sinfo -R"),
        ("(ReqNodeNotAvail, UnavailableNodes:node[1-3])", "(node[1-3])", "sinfo -R"),
        (DOWN, "nodes are down: too few nodes are left", "fewer --nodes"),
        (DOWN.replace("_", " "), "nodes are down: too few nodes are left", "fewer --nodes"),
        ("QOSMaxNodePerUserLimit", "as much as they may at once", "others of them end"),
        ("QOSMaxCpuPerJobLimit", "more than its quality of service allows a job", "another --qos"),
        ("QOSMaxWallDurationPerJobLimit", "allows a job", "less --time"),
        ("QOSGrpGRES", "the jobs of its quality of service", "another --qos"),
        ("AssocGrpCPURunMinutesLimit", "the jobs of its account", "another --account"),
        ("AssocMaxJobsLimit", "the jobs of its account", "others of them end"),
        ("None", "Slurm has not looked at it yet", "within a minute"),
    ],
)
def test_a_reason_says_what_would_change_it(reason, means, change):
    words = pending.explained(reason, "12")
    what, _, how = words.partition("; to change that: ")
    assert means in what and change in how and "{" not in words


def test_a_reason_that_nobody_knows_is_shown_as_it_is():
    assert pending.explained("Moon_phase", "12") == "Moon phase; scontrol show job 12 says more"


def test_an_expected_start_is_said_where_slurm_knows_one():
    now_s = datetime(2026, 11, 22, 16, 26, 0).timestamp()
    assert pending.expected_start("2026-11-22T17:25:56", now_s) == (
        "expected start: 2026-11-22 17:25:56 (in 60 min), as far as Slurm knows"
    )
    assert "(now)" in (pending.expected_start("2026-11-22T16:25:56", now_s) or "")
    for unknown in ("Unknown", "N/A", ""):
        assert pending.expected_start(unknown, now_s) is None


# As squeue of 22.05.8 and of 24.11.5 answers, byte for byte the same.
QUEUE = (
    f"2|2|PENDING|0|N/A|N/A|{DOWN.replace('_', ' ')}",
    "3|3|PENDING|1|2026-11-22T17:28:36|N/A|BeginTime",
    "4|4|PENDING|0|N/A|N/A|JobHeldUser",
    "1|1|RUNNING|0|2026-11-22T16:28:36|2026-11-22T17:28:36|None",
    "9|7_3|RUNNING|0|2026-11-22T16:28:36|UNLIMITED|None",
)


@pytest.fixture
def slurm(tmp_path):
    (tmp_path / "slurm").mkdir()
    fake = FakeSlurm(tmp_path / "slurm")
    fake.queue_is(*QUEUE)
    return fake


def test_one_question_tells_of_all_jobs(slurm):
    found = job_states(["1", "2", "3", "7_3", "9", "99"], slurm.env)
    of_array = JobState("RUNNING", "", 0, "2026-11-22T16:28:36", "UNLIMITED")
    assert found == {
        "1": JobState("RUNNING", "", 0, "2026-11-22T16:28:36", "2026-11-22T17:28:36"),
        "2": JobState("PENDING", DOWN, 0, "N/A", "N/A"),
        "3": JobState("PENDING", "BeginTime", 1, "2026-11-22T17:28:36", "N/A"),
        "7_3": of_array,
        "9": of_array,  # as the job itself knows it
        "99": JobState(FORGOTTEN),
    }


def test_when_the_time_of_a_job_is_up_is_known_where_slurm_says_so(slurm):
    assert end_unix_s("1", slurm.env) == datetime(2026, 11, 22, 17, 28, 36).timestamp()
    assert end_unix_s("9", slurm.env) is None
    slurm.silence()
    assert end_unix_s("1", slurm.env) is None


def test_who_looks_at_many_jobs_asks_once_in_five_seconds_and_never_for_each(slurm):
    now = [0.0]
    watcher = Watcher(slurm.env, clock=lambda: now[0])
    for tick in range(16):  # half a minute, every other second
        now[0] = 2.0 * tick
        watcher.look_at(["1", "2", "99"])
        states = [watcher.state(one, sign=tick).name for one in ("1", "2", "99")]
        assert states == ["RUNNING", "PENDING", FORGOTTEN]
    assert len(slurm.calls("squeue")) == 6 and slurm.calls("scontrol") == []
    assert "--jobs=1,2 " in slurm.calls("squeue")[-1]  # one that is over is not asked about again


def test_while_slurm_is_silent_nothing_is_known(slurm):
    watcher = Watcher(slurm.env)
    slurm.silence()
    watcher.look_at(["1", "2"])
    assert watcher.state("1").name == watcher.state("2").name == UNKNOWN
    assert len(slurm.calls("squeue")) == 1
