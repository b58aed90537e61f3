"""Nodes with their own disk are asked what runs left there; what a run needs stays."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.nodes import node_facts
from launch.nodes.survey import Survey, local_transport
from launch.ssh.node_leftovers import UNKNOWN, on_nodes
from muster.run_files import claim
from tests.written import write

pytestmark = pytest.mark.needs("ip")

NO_END = "its run has recorded no end, and changed a file in the last seven days"


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout that was sent to a node, which does not see this one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return write(tmp_path / "muster", {node_facts.MARKER: "", "logs/.keep": ""})


def ran(checkout: Path, name: str, *, checkpoint: bool = False, ended: bool = True) -> Path:
    """The files that a run has left on a node."""
    write(checkout / "logs" / f".snapshot-{name}", {"train.py": "print()"})
    files = {".claimed-1": "", "agents/node_00000.json": {}, "workers/rank_00000.out": "123"}
    files |= {"agents/node_00001.json": {}, "agents/node_00001.exit.json": {"code": 0}}
    if ended:
        files["agents/node_00000.exit.json"] = {"code": 0}
    if checkpoint:
        files["checkpoints/step_1/model.pt"] = "12345"
    return write(checkout / "logs" / name, files)


def ask(checkout: Path, *, named=(), running=(), remove=False) -> dict[str, str]:
    """The reason why each of them stays, by name; "" for one that goes."""
    found, silent = on_nodes(local_transport(1), str(checkout), named, running, remove=remove)
    assert silent == []
    assert {leftover.node for leftover in found} <= {"node0"}
    return {
        Path(leftover.path).name: leftover.stays
        for leftover in found
        if leftover.path.startswith(str(checkout))
    }


def test_files_of_a_run_that_is_over_go(checkout):
    ran(checkout, "over")
    assert ask(checkout) == {".snapshot-over": "", "over": ""}
    assert (checkout / "logs" / "over").exists()  # they were only shown
    ask(checkout, remove=True)
    assert [path.name for path in (checkout / "logs").iterdir()] == [".keep"]


def test_run_files_stay_while_run_may_be_active(checkout):
    ran(checkout, "lives", ended=False)
    ran(checkout, "led")
    found = ask(checkout, running=["led"], named=["lives"], remove=True)
    assert found == {
        **dict.fromkeys([".snapshot-led", "led"], "its run is not over"),
        **dict.fromkeys([".snapshot-lives", "lives"], NO_END),
    }
    assert (checkout / "logs" / "lives").exists() and (checkout / "logs" / "led").exists()


def used(checkout: Path) -> dict[str, bool]:
    """Whether a run may still use each of its leftovers, by name."""
    left = node_facts.leftovers({"node": "0", "folders": {"0": str(checkout)}})
    own = [entry for entry in left if entry["path"].startswith(str(checkout))]
    return {Path(entry["path"]).name: entry["used"] for entry in own}


@pytest.mark.parametrize("changes", [False, True])
def test_without_recorded_end_the_newest_file_decides(checkout, monkeypatch, changes):
    """As of agents that were killed, or of a run that is being sent, or restarts."""
    run_dir = ran(checkout, "killed", ended=False)
    write(checkout / "logs" / ".snapshot-sent", {"train.py": ""})
    restarts = ran(checkout, "restarts")
    (restarts / "attempts" / "0").mkdir(parents=True)
    (restarts / "agents").rename(restarts / "attempts" / "0" / "agents")
    names = [".snapshot-killed", ".snapshot-restarts", ".snapshot-sent", "killed", "restarts"]
    assert used(checkout) == dict.fromkeys(names, True)
    newest_s = max(path.lstat().st_ctime for path in (checkout / "logs").rglob("*"))
    later = SimpleNamespace(time=lambda: newest_s + node_facts.ACTIVE_S)
    if changes:
        output = run_dir / "workers" / "rank_00000.out"
        while output.lstat().st_ctime <= newest_s:  # which a kernel counts in milliseconds
            write(run_dir, {"workers/rank_00000.out": "1234"})
    monkeypatch.setattr(node_facts, "time", later)
    stay = [name for name, stays in used(checkout).items() if stays]
    assert stay == ([".snapshot-killed", "killed"] if changes else [])


def test_checkpoints_go_only_if_the_run_is_named(checkout):
    ran(checkout, "saved", checkpoint=True)
    found = ask(checkout, remove=True)
    assert found["saved"] == "it has checkpoints; to remove them, name the run: saved"
    assert (checkout / "logs" / "saved" / "checkpoints" / "step_1" / "model.pt").exists()
    assert ask(checkout, named=["saved"], remove=True) == {"saved": ""}
    assert not (checkout / "logs" / "saved").exists()


def test_run_started_on_node_itself_is_no_leftover(checkout):
    run_dir = checkout / "logs" / "own"
    claim(run_dir, {}, overwrite=False, resumed=False)
    write(run_dir, {"checkpoints/step_1/model.pt": ""})
    write(run_dir, {".claimed-1": ""})
    (checkout / "logs" / ".snapshot-link").symlink_to(checkout / "logs" / "own")
    assert ask(checkout) == {}


def test_a_folder_that_was_not_sent_is_not_looked_into(checkout):
    ran(checkout, "over")
    (checkout / node_facts.MARKER).unlink()
    assert ask(checkout) == {}


def test_a_node_that_sees_this_checkout_has_nothing_of_its_own(checkout):
    ran(checkout, "over")
    assert on_nodes(local_transport(2), None, [], [], remove=True) == ([], [])


def test_file_that_a_node_keeps_is_not_called_removed(checkout, monkeypatch):
    ran(checkout, "over")
    answered = Survey.ask

    def silent(survey, function, *args, **asked):
        if function is node_facts.remove_leftovers:
            return {}
        return answered(survey, function, *args, **asked)

    monkeypatch.setattr(Survey, "ask", silent)
    found, lines = on_nodes(local_transport(1), str(checkout), [], [], remove=True)
    own = [leftover for leftover in found if leftover.path.startswith(str(checkout))]
    assert {leftover.error for leftover in own} == {UNKNOWN} and len(lines) == 1


def test_file_that_came_into_use_is_not_called_removed(checkout):
    run_dir = ran(checkout, "begun")
    asked = {"node": "0", "folders": {"0": str(checkout)}}
    paths = {"0": [str(run_dir)]}
    (run_dir / "agents" / "node_00000.exit.json").unlink()
    failed = node_facts.remove_leftovers({**asked, "paths": paths})
    assert failed == {str(run_dir): "a run has begun to use it"} and run_dir.exists()


def test_a_node_that_does_not_answer_is_an_error(checkout):
    ran(checkout, "over")
    transport = local_transport(2)
    commands = [transport.commands[0], ["false"]]
    found, silent = on_nodes(
        replace(transport, commands=commands), str(checkout), [], [], remove=False
    )
    assert found and len(silent) == 1 and silent[0].startswith("node1: ")
