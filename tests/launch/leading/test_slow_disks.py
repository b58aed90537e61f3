"""An agent that waits for its disk is named with the file it waits for; its run goes on."""

import os
import time

import pytest

from tests.launch.led import agent, finished, led
from tests.launch.submit import wait_until

HELD_S = 14.0
DEADLINES = {"AGENT_LOST_WHEN_SILENT_S": 10.0, "AGENT_STANDS_NAMED_AFTER_S": 4.0}


@pytest.mark.slow
def test_slow_disk_of_agent_is_named_and_run_goes_on(tmp_path):
    with led(tmp_path, **DEADLINES) as leader:
        record = tmp_path / "agents" / "node_00001.exit.json"
        # `write_json` opens this first, and waits for a reader
        fifo = record.with_name(f"{record.name}.{agent(tmp_path, 1).pid}.partial")
        os.mkfifo(fifo)
        (tmp_path / "go_1").touch()
        wait_until((tmp_path / "exits" / "rank_00001.json").exists)
        time.sleep(HELD_S)
        assert leader.poll() is None
        named = next(line for line in leader.stdout if "is its disk full" in line)
        reader = os.open(fifo, os.O_RDONLY)
        # its agent stays, and sends beats, until the other node is also done
        goes_on = next(line for line in leader.stdout if "node1" in line)
        printed = finished(leader, tmp_path)
        os.close(reader)
    assert named.startswith(f"node1 (127.0.0.1) has been waiting for {record} for ")
    assert goes_on == "node1 (127.0.0.1) is no longer waiting\n"
    assert " waiting" not in printed
