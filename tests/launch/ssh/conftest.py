"""A small checkout, and hosts that are folders on this machine, for the real rsync."""

import pytest

from configs.settings.launch import ONE_WORKER
from launch.spec import NodeFacts, NodeSpec
from launch.ssh import transfer
from launch.ssh.login_node.connection import Connection
from launch.ssh.login_node.installation import Installation
from tests.required import need
from tests.written import executable, write

# Takes the place of ssh: a host is a home folder below HOMES.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do
    case $1 in
        -G | -O) exit 0 ;;
        -o | -F | -l | -p) shift 2 ;;
        *) shift ;;
    esac
done
export HOME="{homes}/$1"
shift
cd "$HOME" || exit
[[ ! -f .bashrc ]] || . ./.bashrc
exec sh -c "$*"
"""
# Start-up files of a login shell that disturb the commands it is given.
TITLE = "printf '\\033]0;me@muster:~\\007'; printf 'hello, 7 users' >&2\n"
READS = "read -r answer\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small checkout in place of the real one."""
    packages = [f"{one}/here.py" for one in ("launch", "muster", "train")]
    names = ("Makefile", "configs/here.yaml", *packages)
    root = write(tmp_path / "checkout", dict(zip(names, names, strict=True)))
    monkeypatch.setattr(transfer, "CHECKOUT", root)
    return root


@pytest.fixture
def hosts(tmp_path, monkeypatch, checkout):
    """A function that makes hosts, each with its own home unless it is given another host's."""
    need("rsync")
    homes = tmp_path / "homes"
    (tmp_path / "bin").mkdir()
    ssh = executable(tmp_path / "bin" / "ssh", SSH.format(homes=homes))
    monkeypatch.setenv("PATH", str(ssh.parent), prepend=":")

    def make(*names: str, **homes_of: str) -> list[NodeFacts]:
        for name in names:
            (homes / name).mkdir(parents=True)
        for name, other in homes_of.items():
            (homes / name).symlink_to(homes / other)
        return [
            NodeFacts(
                NodeSpec(name, ONE_WORKER),
                name,
                "python3",
                f"{homes}/{name}/muster",
                ONE_WORKER,
                shared=False,
            )
            for name in (*names, *homes_of)
        ]

    return make


@pytest.fixture
def installation(hosts, tmp_path, monkeypatch):
    """Muster on a login node, whose home is `homes/node0`; nothing is sent to it yet."""
    hosts("node0")
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "homes" / "node0" / ".muster"
    checkout, python = folder / "versions" / "1", folder.parent / "python"
    return Installation(Connection("node0"), str(folder), str(checkout), str(python))
