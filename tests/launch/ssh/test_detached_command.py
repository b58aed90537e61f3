"""Commands on a login node: what those have left that ended long ago goes."""

import fcntl
import os
import time

from launch.ssh.login_node import detached_command


def test_what_ended_long_ago_is_removed(tmp_path):
    old = time.time() - detached_command.KEPT_S - 1
    for name in ("ended", "ended.call", "runs", "new"):
        (tmp_path / name).mkdir()
        if not name.endswith(".call"):
            (tmp_path / name / "lock").touch()
        if name != "new":
            os.utime(tmp_path / name, (old, old))
    with (tmp_path / "runs" / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        detached_command._remove_old(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "runs"]
