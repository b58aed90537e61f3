"""`muster jobs clean` shows what runs left on this machine, and removes it when asked to."""

import fcntl
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

import pytest

from launch.runs import leftovers, run_record
from muster.command import logins
from tests.commands import call
from tests.launch.run_folders import leader, remembered
from tests.launch.submit import JOBS
from tests.written import write


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    (tmp_path / "tmp").mkdir()
    for name in ("state", "tmp"):
        monkeypatch.setenv({"state": "XDG_STATE_HOME", "tmp": "TMPDIR"}[name], str(tmp_path / name))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def make_old(path: Path, days: int) -> None:
    then = time.time() - days * leftovers.LEFT_FILES_NEEDED_S
    os.utime(path, (then, then), follow_symlinks=False)


def clean(*words: str) -> tuple[int, str, str]:
    done = call(sys.executable, JOBS, "clean", *words, cwd="/")
    return done.returncode, done.stdout, done.stderr


def here(tmp_path) -> list[str]:
    """Return the leftovers of this test, without other users' files in /tmp."""
    return [one.what for one in leftovers.here() if one.path.startswith(str(tmp_path))]


def test_leftovers_are_shown_and_removed_only_when_asked_for(tmp_path):
    stays, gone = remembered(tmp_path / "logs" / "stays"), remembered(tmp_path / "logs" / "gone")
    shutil.rmtree(gone)
    assert here(tmp_path) == []  # its disk may be away
    for link, _ in run_record.links():
        make_old(link, days=31)
    code, out, err = clean()
    assert (code, err) == (0, "")
    assert f"symbolic link to {gone}, which no longer exists" in out
    assert re.search(
        r"^\d+ in total, \S+ \w+; to remove them: muster jobs clean --remove$", out, re.M
    )
    assert len(run_record.links()) == 2
    code, out, _ = clean("--remove", "--json")
    document = json.loads(out)
    assert code == 0 and document["kind"] == "leftovers" and document["removed"]
    assert f"symbolic link to {gone}, which no longer exists" in [
        one["what"] for one in document["leftovers"]
    ]
    assert [run_dir for _, run_dir in run_record.links()] == [stays]


def test_record_of_login_run_is_leftover_after_a_month(tmp_path):
    write(logins(), {"new": {"session": ""}, "old": {"session": ""}})
    make_old(logins() / "old", days=31)
    assert here(tmp_path) == ["record of where a run is, more than a month old"]


def test_a_link_in_the_checkout_goes_when_its_run_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "CHECKOUT", tmp_path / "muster")
    logs = tmp_path / "muster" / "logs"
    write(logs, {"runs/job.json": leader(), "over/exit.json": {"code": 0, "message": ""}})
    for name in ("runs", "over", "removed"):
        (logs / f".snapshot-{name}").symlink_to(logs / name / "snapshot")
    assert here(tmp_path) == [
        "symbolic link for over, which is over",
        "symbolic link for removed, which is over",
    ]


def test_link_to_missing_disk_in_checkout_is_no_leftover(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "CHECKOUT", tmp_path / "muster")
    logs = tmp_path / "muster" / "logs"
    logs.mkdir(parents=True)
    (logs / ".snapshot-run").symlink_to(tmp_path / "disk" / "logs" / "run" / "snapshot")
    assert here(tmp_path) == []


@pytest.fixture
def base(tmp_path, monkeypatch) -> Path:
    """Muster's folder on a login node, with this version, an old one and a new one."""
    base = tmp_path / ".muster"
    for name in ("this", "other", "new"):
        write(base / "versions" / name, {".sent": "", "launch/x.py": "12345"})
    make_old(base / "versions" / "this" / ".sent", days=9)
    make_old(base / "versions" / "other" / ".sent", days=9)
    monkeypatch.setattr(leftovers, "CHECKOUT", base / "versions" / "this")
    return base


def session(base: Path, name: str, days: int) -> Path:
    folder = write(base / "sessions" / name, {"lock": "", "out": "", "err": "", "code": "0"})
    make_old(folder / "err", days)
    write(base / "sessions" / f"{name}.call", {"call.pkl": ""})
    return folder


def test_on_a_login_node_other_versions_and_old_sessions_go(base, tmp_path):
    session(base, "run-1", days=2)
    session(base, "run-2", days=0)  # a laptop may still ask for its last output
    found = [leftover for leftover in leftovers.here() if leftover.path.startswith(str(tmp_path))]
    names = [str(Path(leftover.path).relative_to(base)) for leftover in found]
    assert names == ["sessions/run-1", "sessions/run-1.call", "versions/other"]
    assert found[-1].size_bytes == 5 and not found[-1].stays
    for leftover in found:
        assert not leftovers.remove(leftover).error
    assert here(tmp_path) == []
    assert sorted(path.name for path in (base / "versions").iterdir()) == ["new", "this"]


def test_muster_version_in_use_by_run_or_command_stays(base, tmp_path):
    run_dir = remembered(tmp_path / "logs" / "running")
    write(run_dir, {"job.json": leader()})
    (other,) = (one for one in leftovers.here() if one.what == "another version of Muster")
    assert other.stays == "running is not over and may need it"
    write(run_dir, {"exit.json": {"code": 0, "message": ""}})
    folder = session(base, "run-1", days=2)
    with (folder / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (other,) = (one for one in leftovers.here() if one.path.startswith(str(tmp_path)))
        assert other.stays == "a command is not over and may need it"


def test_leftover_that_cannot_be_removed_is_an_error(tmp_path):
    leftover = leftovers.Leftover(str(tmp_path / "file" / "below"), "")
    write(tmp_path, {"file": ""})
    assert leftovers.remove(leftover).error == "Not a directory"
