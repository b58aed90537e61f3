"""A temporary folder is left over only when its process is gone."""

import signal
import subprocess
import sys

import pytest

from muster import writing
from muster.checkout import CHECKOUT

HOLD = """
from muster.writing import scratch_folder
with scratch_folder() as folder:
    (folder / "result").write_text("PASSWORD=1")
    print(folder, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def _tmpdir(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def left_over(tmp_path) -> list:
    return [path for path in writing.left_over() if path.parent == tmp_path]


def test_the_folder_of_a_killed_process_is_left_over(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT,
        text=True,
    )
    with process:
        folder = process.stdout.readline().strip()
        assert left_over(tmp_path) == []  # its process is still alive
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert list(map(str, left_over(tmp_path))) == [folder]


def test_folders_of_others_are_not_left_over(tmp_path):
    (tmp_path / "muster-notes").mkdir()
    (tmp_path / "muster-link").symlink_to(tmp_path / "muster-notes")
    (tmp_path / "muster-file").touch()
    (tmp_path / "other" / writing.LOCK).mkdir(parents=True)
    assert left_over(tmp_path) == []


def test_the_folder_goes_with_the_context(tmp_path):
    with writing.scratch_folder("muster-call-") as folder:
        assert folder.parent == tmp_path
        (folder / "call").touch()
    assert list(tmp_path.iterdir()) == []


def test_scratch_folder_without_file_locks_is_never_left_over(tmp_path, monkeypatch):
    def refuse(*given):
        raise OSError("no locks available")

    monkeypatch.setattr("muster.writing.fcntl.flock", refuse)
    with writing.scratch_folder() as folder:
        monkeypatch.undo()
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        assert folder.is_dir() and left_over(tmp_path) == []
