"""What --send takes, and what it refuses before any node is asked."""

import os
import shutil

import pytest

from configs.settings.launch import Sending
from launch.nodes.data_source import Source, problems
from muster.errors import MusterError
from tests.written import write


def test_data_that_cannot_be_sent_is_refused_before_nodes_are_asked(tmp_path):
    write(tmp_path, {"file": "no archive", "dir/a": ""})
    path = shutil.make_archive(str(tmp_path / "set"), "gztar", tmp_path / "dir")

    def lines_of(text: str) -> list[str]:
        return [*problems(Sending.parse(text), tmp_path)]

    assert lines_of("dir") == lines_of("dir:/x") == lines_of("set.tar.gz:/x") == []
    assert "does not exist; give a folder or an archive" in lines_of("nowhere")[0]
    assert "is no folder, and no tar or zip archive" in lines_of("file:/x")[0]
    assert lines_of(str(path))[0].endswith(f"that you name: --send {path}:/tmp/set")


def test_outside_link_or_fifo_in_sent_data_is_refused(tmp_path):
    source = write(tmp_path / "data", {"a": "", "deep/b": ""})
    (source / "out").symlink_to("/etc")
    (source / "deep/up").symlink_to("../../x")
    os.mkfifo(source / "pipe")
    with pytest.raises(MusterError) as refused:
        Source(source)
    lines = str(refused.value).splitlines()
    assert len(lines) == 3 and f"{source}/pipe is no file, folder or link" in lines[1]
    assert f"{source}/out is a link to /etc, which is outside" in lines[0]
