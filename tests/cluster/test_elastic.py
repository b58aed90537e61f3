"""A run loses a node and goes on with the others; the node comes back and takes part."""

import json
from pathlib import Path

import pytest

from muster import run_files
from tests.cluster import ways
from tests.cluster.ways import finish, start
from tests.commands import ended
from tests.launch.submit import submit, wait_until

FLAGS = ["--task", "synthetic", "--epochs", "60", "--dropout", "0", "--threads", "1"]
OFTEN = ["--checkpoint-every", "20", "--evaluate", "never", "--lr", "1e-4"]


def losses(folder: Path) -> dict[int, float]:
    """Of a run that may still be writing."""
    records = run_files.read_objects(folder / "metrics" / "rank_00000.jsonl")
    return {one["step"]: one["loss"] for one in records if one["kind"] == "step"}


def ranks(folder: Path) -> int:
    return len(list((folder / "metrics").glob("rank_*.jsonl")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[int, float]:
    """The losses of a run that lost nothing, on as few nodes as there may be."""
    folder = tmp_path_factory.mktemp("whole")
    here = ["--launcher", "local", "--nodes", "2", "--logs-dir", str(folder), "--run-id", "whole"]
    code, _, err = submit(*here, *FLAGS, *OFTEN)
    assert code == 0, err
    return losses(folder / "whole")


def test_a_node_is_lost_and_returns(cluster, tmp_path, whole):
    flags = [*FLAGS, *OFTEN, "--logs-dir", str(tmp_path)]
    elastic = ["--nodes", "2:3", "--max-restarts", "3", "--run-id", "hurt"]
    hurt = tmp_path / "hurt"
    process = start(cluster, ways.ssh(cluster, 3, *flags, *elastic))
    with ended(process):
        assert wait_until(lambda: any(hurt.glob("checkpoints/step_????????")))
        cluster.exec("node2", "ip", "link", "set", "exp0", "down")
        assert wait_until((hurt / "attempts" / "0").exists)
        assert wait_until(lambda: ranks(hurt) == 2)
        cluster.exec("node2", "ip", "link", "set", "exp0", "up")
        assert wait_until(lambda: len(losses(hurt)) > 30)
        agent = json.loads((hurt / "agents" / "node_00001.json").read_text())
        cluster.exec("node1", "kill", "-9", str(agent["pid"]))
        code, out, err = finish(process)
    assert code == 0, err
    assert "restart 1 of 3: 2 nodes go on from the last checkpoint" in out
    assert "note: going on without it: node2: " in err
    assert "restart 2 of 3: 3 nodes go on from the last checkpoint" in out
    folders = [hurt / "attempts" / "0", hurt / "attempts" / "1", hurt]
    assert [ranks(folder) for folder in folders] == [3, 2, 3]
    found: dict[int, float] = {}
    for folder in folders:
        found |= losses(folder)
    assert found.keys() == whole.keys()
    assert max(abs(found[step] - whole[step]) for step in whole) < 1e-5
