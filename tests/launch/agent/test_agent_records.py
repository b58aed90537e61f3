"""What agents write down of themselves, for whoever looks at the run folder."""

import json
from dataclasses import replace

from launch.agent.agent_records import write_waiting
from tests.launch.pretended import assignment


def test_the_first_node_says_for_whom_it_waits_and_no_other_does(tmp_path):
    (tmp_path / "agents").mkdir()
    path = tmp_path / "agents" / "meeting.json"
    first = assignment(tmp_path)
    write_waiting(replace(first, index=1), "waiting for node 2")
    assert not path.exists()
    write_waiting(first, "waiting for node 2")
    assert json.loads(path.read_text())["text"] == "waiting for node 2"
    write_waiting(first, None)
    assert json.loads(path.read_text())["text"] is None
