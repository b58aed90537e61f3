"""What the agents of a run find out together; how ranks ended is read from the records."""

import json
import time
from dataclasses import replace

import pytest

from launch.agent.inspection import questions
from launch.agent.inspection.run_inspection import RunInspection, views_of
from launch.nodes.messages import (
    Inspect,
    Inspected,
    InspectedAll,
    NoProgress,
    ProcessReport,
    Report,
)
from launch.runs import run_record
from launch.runs.log_tail import Request, RequestFile
from muster.errors import MusterError
from muster.run_files import RANK_END, STACKS
from muster.writing import write_json
from tests.launch.pretended import assignment

NODES = ["node0", "node1", "node2", "node3"]
CLOSED = "RuntimeError: [tcp/pair.cc:553] Connection closed by peer [10.10.1.2]:13476."
TIMED_OUT = "RuntimeError: [tcp/unbound_buffer.cc:129] Timed out waiting 8000ms for send operation"


def test_timeout_and_lost_peer_of_ranks_are_distinguished(tmp_path):
    messages = [CLOSED, TIMED_OUT, "ValueError: sample 17 is empty"]
    for rank, message in enumerate(messages):
        record = {"rank": rank, "host": f"node{rank}", "cause": "crash", "code": 1}
        record |= {"message": message, "traceback": "", "time_unix_s": time.time()}
        write_json(RANK_END.path(tmp_path, rank=rank), record)
    spec = assignment(tmp_path).spec
    inspection = RunInspection(spec, NODES, RequestFile(tmp_path), lambda message: None, print)
    views = views_of({"reports": [], "node_of": {}, "ends": inspection._ends()})
    assert [one.lost_peer for one in views.values()] == [True, False, False]
    assert [one.timed_out for one in views.values()] == [False, True, False]


def test_run_ended_for_hang_is_not_reported_as_going_on(tmp_path):
    """Its workers make progress again as they end."""
    rule, messages = replace(assignment(tmp_path).spec, hang_after_s=15.0, on_hang="stop"), []
    requests = RequestFile(tmp_path)
    inspection = RunInspection(rule, NODES[:1], requests, lambda message: None, messages.append)

    def agent_says(message):
        inspection.take(0, message)
        inspection.tick()

    agent_says(NoProgress(16.0, 1.0))
    agent_says(InspectedAll("hang"))
    assert "no progress" in inspection.hang.text and len(messages) == 1
    agent_says(NoProgress(0.0, 16.0))
    assert len(messages) == 1


def test_end_of_run_is_not_reported_as_progress(tmp_path):
    spec, messages = replace(assignment(tmp_path).spec, hang_after_s=15.0), []
    requests = RequestFile(tmp_path)
    inspection = RunInspection(spec, NODES[:1], requests, lambda message: None, messages.append)
    for message in (NoProgress(16.0, 1.0), InspectedAll("hang"), NoProgress(0.0, 1.0)):
        inspection.take(0, message)
        inspection.tick(is_ending=message == NoProgress(0.0, 1.0))
    assert len(messages) == 1 and "no progress" in messages[0]


def test_node_that_does_not_answer_is_named_with_its_link(tmp_path):
    requests = RequestFile(tmp_path)
    inspection = RunInspection(
        assignment(tmp_path).spec, NODES[:2], requests, lambda message: None, print
    )
    inspection.begin(Request("7", "stacks"))
    inspection.take(1, InspectedAll("7"))
    found = inspection._findings(inspection._gatherings["7"])
    assert found["lost"] == {"node0": "no message from its agent for 3.5 s; is its link down?"}


def test_agent_waiting_for_its_disk_reports_no_hang(tmp_path, monkeypatch):
    """Meanwhile it cannot observe its workers; a file server may take a minute."""
    now_s = [0.0]
    monkeypatch.setattr("launch.agent.inspection.run_inspection.running_s", lambda: now_s[0])
    rule, asked = replace(assignment(tmp_path).spec, hang_after_s=15.0, on_hang="stop"), []
    requests = RequestFile(tmp_path)
    inspection = RunInspection(rule, NODES[:1], requests, asked.append, print)
    inspection.take(0, NoProgress(1.0, 1.0))
    for now_s[0] in range(60):
        inspection.note_wait(0, "/disk/record.json")
        inspection.tick()
    assert asked == []
    inspection.begin(Request("7", "stacks"))
    found = inspection._findings(inspection._gatherings["7"])
    assert found["lost"] == {"node0": "its agent is waiting for /disk/record.json"}
    inspection.note_wait(0, "")
    now_s[0] += 16.0
    inspection.tick()
    assert Inspect("hang", "stacks") in asked


def test_last_places_of_ranks_are_judged_when_asked_for(tmp_path, capsys):
    inspection = RunInspection(
        assignment(tmp_path).spec, NODES[:1], RequestFile(tmp_path), lambda message: None, print
    )
    report = Report(rank=0, answers=True, process=ProcessReport("sleeping", "sleeps"))
    inspection.take(0, Inspected("end", report))
    inspection.take(0, InspectedAll("end"))
    inspection.finish()
    recorded = json.loads(STACKS.path(tmp_path, name="end").read_text())
    assert "sentences" not in recorded
    assert recorded["reports"][0].keys() == set(Report.__struct_fields__)  # also in --json
    run_record.end(tmp_path, 1, "")
    questions.stacks(tmp_path, full=False)
    meaning, rank = capsys.readouterr().out.splitlines()[1:]
    assert meaning == "no rank has been waiting long in a collective"
    assert rank.startswith("rank 0 on node0: ")


def test_sentences_recorded_by_another_version_are_printed(tmp_path, capsys):
    """Reports of that version may have other fields."""
    report = {"rank": 0, "frames": []}
    seen = {"time_unix_s": 1.0, "reports": [report], "node_of": {"0": "node0"}, "ends": {}}
    seen["lost"] = {}
    write_json(STACKS.path(tmp_path, name="hang"), {**seen, "sentences": ["rank 0 sleeps"]})
    run_record.end(tmp_path, 1, "")
    questions.stacks(tmp_path, full=True)
    assert capsys.readouterr().out.splitlines()[1:] == ["rank 0 sleeps"]
    STACKS.path(tmp_path, name="hang").unlink()
    write_json(STACKS.path(tmp_path, name="end"), seen)
    with pytest.raises(MusterError, match="cannot be read"):
        questions.stacks(tmp_path, full=False)
