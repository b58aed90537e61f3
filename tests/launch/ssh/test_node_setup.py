"""The environment is made once in each folder, from wheels where packages cannot be fetched."""

from pathlib import Path

import pytest

from configs.settings.launch import SshConfig
from launch.ssh import node_setup
from muster.errors import MusterError

# In the place of node_setup.sh: FOLDER WHEELS TORCH_INDEX
SCRIPT = """
cd -- "$1"
echo "made from ${2:-the internet}" >>made
if [[ -e offline && -z $2 ]]; then exit 75; fi
if [[ -n $2 && ! -e $2/torch.whl ]]; then echo "no wheels" >&2; exit 1; fi
if [[ -e broken ]]; then echo "has no Python 3.11 or newer" >&2; exit 1; fi
"""


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """Makes the environments of nodes; what was printed, and what each node's folder says of it."""
    script, wheels = tmp_path / "script.sh", tmp_path / "wheels"
    script.write_text(SCRIPT)
    wheels.mkdir()
    (wheels / "torch.whl").write_text("")
    monkeypatch.setattr(node_setup, "SCRIPT", script)
    monkeypatch.setattr(node_setup, "_gather", lambda: wheels)

    def setup(nodes):
        lines = []
        node_setup.make_environments(nodes, SshConfig(), lines.append)
        made = [Path(node.repository, "made").read_text().splitlines() for node in nodes]
        return lines, made

    return setup


def mark(node, name):
    Path(node.repository).mkdir(exist_ok=True)
    Path(node.repository, ".muster-sent").touch()
    Path(node.repository, name).touch()


def test_each_folder_once_and_from_wheels_where_there_is_no_internet(hosts, setup):
    nodes = hosts("a", "b", c="a")
    mark(nodes[1], "offline")
    lines, made = setup(nodes)
    assert lines == ["no internet on b: gathering wheels here"]
    assert made[0] == made[2] == ["made from the internet"]
    assert made[1] == ["made from the internet", "made from .venv/wheels"]


def test_every_node_on_which_it_failed_is_named(hosts, setup):
    nodes = hosts("a", "b", "c")
    mark(nodes[0], "broken")
    mark(nodes[2], "broken")
    with pytest.raises(MusterError) as refused:
        setup(nodes)
    assert str(refused.value).splitlines() == [
        "a: has no Python 3.11 or newer",
        "c: has no Python 3.11 or newer",
    ]
