"""What the agents of a run find out together: how ranks ended is told from the records."""

import json
import time

from launch.agent.inspection.run_inspection import RunInspection, views_of

CLOSED = "RuntimeError: [tcp/pair.cc:553] Connection closed by peer [10.10.1.2]:13476."
TIMED_OUT = "RuntimeError: [tcp/unbound_buffer.cc:129] Timed out waiting 8000ms for send operation"


def test_who_gave_up_is_told_from_who_lost_its_connection_to_that(tmp_path):
    (tmp_path / "exits").mkdir()
    messages = [CLOSED, TIMED_OUT, "ValueError: sample 17 is empty"]
    for rank, message in enumerate(messages):
        record = {"rank": rank, "host": f"node{rank}", "cause": "crash", "code": 1}
        record |= {"message": message, "time_unix_s": time.time()}
        (tmp_path / "exits" / f"rank_{rank:05d}.json").write_text(json.dumps(record))
    inspection = RunInspection(tmp_path, 4, lambda **message: None, lambda text: None, None)
    views = views_of({"reports": [], "node_of": {}, "ends": inspection._ends()})
    assert [one.lost_peer for one in views.values()] == [True, False, False]
    assert [one.timed_out for one in views.values()] == [False, True, False]
