"""A small checkout, hosts that are folders here for the real rsync, and files of hosts."""

import pytest

from launch.spec import NodeFacts, NodeSpec
from launch.ssh import transfer
from launch.ssh.hosts import read_hosts
from muster.errors import UsageError

# Takes ssh's place: a host is a home below HOMES.
SSH = """#!/bin/bash
while [[ $1 == -* ]]; do
    case $1 in
        -G) exit 0 ;;
        -o | -F | -l | -p) shift 2 ;;
        *) shift ;;
    esac
done
export HOME="{homes}/$1"
shift
cd "$HOME" && exec sh -c "$*"
"""


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A small one in the place of this."""
    root = tmp_path / "checkout"
    packages = [f"{one}/here.py" for one in ("launch", "muster", "train")]
    for name in ("Makefile", "configs/here.yaml", *packages):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    monkeypatch.setattr(transfer, "REPOSITORY", root)
    return root


@pytest.fixture
def hosts(tmp_path, monkeypatch, checkout):
    """Makes hosts; each has a home of its own, but those that are given another's."""
    homes = tmp_path / "homes"
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH.format(homes=homes))
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")

    def make(*names: str, **homes_of: str) -> list[NodeFacts]:
        for name in names:
            (homes / name).mkdir(parents=True)
        for name, other in homes_of.items():
            (homes / name).symlink_to(homes / other)
        return [
            NodeFacts(NodeSpec(name, 1), name, "python3", f"{homes}/{name}/muster", 1, shared=False)
            for name in (*names, *homes_of)
        ]

    return make


@pytest.fixture
def read(tmp_path):
    def read(text: str | bytes, **choices) -> tuple[NodeSpec, ...]:
        path = tmp_path / "hosts"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return read_hosts(path, 1, **choices)

    return read


@pytest.fixture
def problems(read, tmp_path):
    def problems(text: str | bytes) -> list[str]:
        with pytest.raises(UsageError) as caught:
            read(text)
        return str(caught.value).replace(f"{tmp_path}/", "").split("\n")

    return problems
