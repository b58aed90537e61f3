"""A small file is written completely or not at all, and a full disk is reported in one line."""

import errno
import json
import math
import stat
from unittest.mock import Mock

import pytest

from muster.worker import process
from muster.writing import CannotWrite, write_json, write_text


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("forced", [True, False])
def test_file_is_replaced_whole_and_secret_unreadable_to_others(forced, tmp_path):
    path = tmp_path / "new" / "summary.json"
    write_json(path, {"steps": 1}, forced=forced)
    before = path.stat().st_ino
    write_json(path, {"steps": 2}, forced=forced, mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"steps": 2} and path.stat().st_ino != before
    assert names(path.parent) == ["summary.json"]


def test_nan_is_written_as_null(tmp_path):
    write_json(tmp_path / "file", {"loss": math.nan, "far": [math.inf, -math.inf], "at": tmp_path})
    found = json.loads((tmp_path / "file").read_text(), parse_constant=pytest.fail)
    assert found == {"loss": None, "far": [None, None], "at": str(tmp_path)}


def test_full_disk_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_text(path, "before")
    monkeypatch.setattr(process.os, "fsync", Mock(side_effect=OSError(errno.ENOSPC, "")))
    with pytest.raises(CannotWrite, match=rf"^\S+: {path}: the disk is full"):
        write_text(path, "after", forced=True)
    assert path.read_text() == "before" and names(tmp_path) == ["summary.json"]


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CannotWrite, match=r"cannot be written: (Not a directory|File exists)"):
        write_text(tmp_path / "file" / "x", "")
