"""An agent that waits for its disk is named with what it waits for, and its run goes on."""

import os
import time

from tests.launch.led import HELD_S, SHORT, WHOLE, agent, finished, led
from tests.launch.submit import wait_until

NAMED = {} if WHOLE else {"AGENT_STANDS_NAMED_AFTER_S": 4.0}


def test_a_record_that_takes_long_to_write_ends_no_run_and_is_named(tmp_path):
    with led(tmp_path, **SHORT, **NAMED) as leader:
        record = tmp_path / "agents" / "node_00001.exit.json"
        # `write_json` opens this first, and waits for a reader
        fifo = record.with_name(f"{record.name}.{agent(tmp_path, 1).pid}.partial")
        os.mkfifo(fifo)
        (tmp_path / "go").touch()
        assert wait_until((tmp_path / "exits" / "rank_00001.json").exists)
        time.sleep(HELD_S)
        assert leader.poll() is None
        reader = os.open(fifo, os.O_RDONLY)
        printed = finished(leader, tmp_path)
        os.close(reader)
    assert f"s: it waits for {record}; is its disk full or slow?" in printed
    assert printed.count("node1 (127.0.0.1) has done nothing for ") == 1
    assert printed.count("node1 (127.0.0.1) goes on") == 1
