"""A node measures its disks in seconds, leaves nothing there, and knows the limits it is under."""

import os
import resource
import subprocess
import sys
import time

from launch.nodes import hardware_probe
from tests.launch.submit import REPOSITORY


def measured(folder) -> dict:
    return hardware_probe._disk(str(folder))


def test_a_folder_that_is_not_there_yet_is_on_the_disk_of_what_it_will_be_in(tmp_path):
    disk = measured(tmp_path / "logs" / "run")
    assert not disk["exists"] and disk["free_bytes"] > 0 and list(tmp_path.iterdir()) == []
    assert disk["write_bytes_s"] > 0 and disk["read_bytes_s"] > 0


def test_a_folder_that_cannot_be_written_says_why():
    disk = measured("/proc/sys")
    assert disk["exists"] and disk["failed"] and "write_bytes_s" not in disk


def test_a_disk_that_is_very_slow_is_not_waited_for(tmp_path, monkeypatch):
    really = os.fsync
    calls = []
    monkeypatch.setattr(os, "fsync", lambda file: (time.sleep(1.5), calls.append(really(file))))
    disk = measured(tmp_path)
    assert len(calls) <= 2 and disk["write_bytes_s"] < 2e6  # of four


def test_limits_are_those_of_what_is_started_there():
    code = (
        f"import sys; sys.path.insert(0, '{REPOSITORY}');"
        "from launch.nodes import hardware_probe as probe;"
        "asked = dict(node='0', folders={'0': {}}, pythons={'0': ''}, has_gpus={'0': False});"
        "found = probe.measure(dict(asked, gpu_health=''));"
        "print(found['open_files'], found['memory_limit_bytes'])"
    )
    limited = f"ulimit -n 77; ulimit -v 3000000; exec '{sys.executable}' -c \"{code}\""
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True)
    assert done.stdout.split() == ["77", str(3000000 * 1024)], done.stderr
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 77
