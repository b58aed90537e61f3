"""The folder of ssh's socket must belong to this user alone; otherwise, a message says why."""

import os
import tempfile

import pytest

from launch.ssh.login_node.connection import Connection
from tests.commands import refusal


@pytest.fixture
def folder(hosts, tmp_path, monkeypatch):
    """The path of the socket's folder for a user without XDG_RUNTIME_DIR."""
    hosts("node0")
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"muster-{os.getuid()}"


REMEDY = "set XDG_RUNTIME_DIR to a folder that only you can use"


def test_socket_folder_is_made_for_this_user_alone(folder):
    Connection("node0")
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.needs("root")  # to give a folder away
def test_the_owner_of_one_that_another_user_has_made_is_named(folder):
    folder.mkdir(mode=0o700)
    os.chown(folder, 65_534, -1)
    assert refusal(Connection, "node0") == f"{folder} belongs to nobody, not to you; {REMEDY}"


def test_a_file_or_link_in_its_place_is_no_traceback(folder, tmp_path):
    folder.touch()
    assert refusal(Connection, "node0") == f"{folder}: File exists (for ssh's socket); {REMEDY}"
    folder.unlink()
    folder.symlink_to(tmp_path)
    link = f"{folder} is a symbolic link; ssh's socket needs a folder; {REMEDY}"
    assert refusal(Connection, "node0") == link


def test_socket_folder_open_to_others_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o755)
    assert refusal(Connection, "node0").endswith(f"chmod 700 {folder}")
