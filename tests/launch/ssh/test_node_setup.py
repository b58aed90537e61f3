"""The environment is made once in each folder."""

from dataclasses import replace
from pathlib import Path

import pytest

from configs.settings.remote import SshConfig
from launch.launchers.base import launcher_of
from launch.programs.command_line import CommandLine
from launch.ssh import transfer
from muster import extras
from muster.errors import MusterError
from tests.written import write

BASE = [*extras.packages(extras.BASE)]
# Takes the place of node_setup.sh; its arguments: FOLDER TORCH_INDEX [PACKAGE ...]
SCRIPT = """
cd -- "$1"
echo "made from ${2:-the usual index}${3+, alone: ${*:3}}" >>made
echo "installing packages" >&2
if [[ -e broken ]]; then
    printf '%s\\n' "ERROR: no route to the index" "has no Python 3.11 or newer" >&2
    exit 1
fi
"""


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """A function that makes nodes' environments, and returns the record in each node's folder."""
    monkeypatch.setattr(transfer, "SCRIPT", write(tmp_path, {"script.sh": SCRIPT}) / "script.sh")

    def setup(nodes):
        transfer.make_environments(nodes, SshConfig())
        return [Path(node.repository, "made").read_text().splitlines() for node in nodes]

    return setup


def test_each_folder_once_and_from_the_index_that_is_named(hosts, setup, monkeypatch):
    nodes = hosts("a", "b", c="a")
    assert setup(nodes) == [["made from the usual index"]] * 3
    monkeypatch.setenv("TORCH_INDEX", "https://index.example")
    assert setup(nodes)[1][1:] == ["made from https://index.example"]


@pytest.mark.usefixtures("setup")
def test_where_programs_have_their_own_torch_the_launchers_packages_suffice(hosts):
    (node,) = hosts("a")
    for words, alone in (([], ""), (["--python", "/opt/python"], f", alone: {' '.join(BASE)}")):
        flags = ["--hosts", "a", "--remote-dir", node.repository]
        launcher_of(CommandLine.parse([*flags, "--setup", *words])).set_up()
        made = Path(node.repository, "made").read_text().splitlines()
        assert made[-1] == f"made from the usual index{alone}"


def test_into_an_installation_that_nodes_see_nothing_is_written(hosts, setup, monkeypatch):
    monkeypatch.setattr(transfer, "IS_INSTALLED", True)
    (node,) = hosts("a")
    Path(node.repository).mkdir()
    with pytest.raises(FileNotFoundError, match="made"):
        setup([replace(node, shared=True)])


def test_each_node_shows_what_it_does_and_why_it_failed(hosts, setup, capsys):
    nodes = hosts("a", "b", "c")
    for node in (nodes[0], nodes[2]):
        write(Path(node.repository), {".muster-sent": "", "broken": ""})
    with pytest.raises(MusterError) as refused:
        setup(nodes)
    problem = "has no Python 3.11 or newer"
    assert str(refused.value).splitlines() == [f"a: {problem}", f"c: {problem}"]
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "sending the code: a, b, c"
    assert [line for line in shown if line.startswith("b: ")] == ["b: installing packages"]
    steps = ["a: installing packages", "a: ERROR: no route to the index", f"a: {problem}"]
    assert [line for line in shown if line.startswith("a: ")] == steps
