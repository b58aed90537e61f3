"""Nodes with their own disks are asked what runs left there; files that a run needs are kept."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launch.nodes import node_facts
from launch.nodes.survey import LOAD, Survey, Transport, local_transport
from launch.ssh.node_leftovers import UNKNOWN, on_nodes
from tests.written import write

pytestmark = pytest.mark.needs("ip")

CHANGED = "a file of its run has changed within the last seven days"
LATER = f"import time; now = time.time; time.time = lambda: now() + {node_facts.ACTIVE_S}; "


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A checkout that was sent to a node that does not see this machine's checkout."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return write(tmp_path / "muster", {node_facts.MARKER: "", "logs/.keep": ""})


def ran(checkout: Path, name: str) -> Path:
    """Write the files that a run leaves on a node."""
    write(checkout / "logs" / f".snapshot-{name}", {"train.py": "print()"})
    files = {".claimed-1": "", "agents/node_00000.json": {}, "workers/rank_00000.out": "123"}
    files |= {"agents/node_00000.exit.json": {"code": 0}, "checkpoints/step_1/model.pt": "12345"}
    return write(checkout / "logs" / name, files)


def a_week_later() -> Transport:
    """Return a transport to a node whose clock is a week ahead."""
    commands = [(sys.executable, "-c", LATER + LOAD, "0")]
    return replace(local_transport(1), commands=commands)


def ask(
    checkout: Path, *, running=(), transport: Transport | None = None, remove=False
) -> dict[str, str]:
    """Return the reason why each leftover is kept, by name; "" if it can be removed."""
    transport = transport or local_transport(1)
    found, silent = on_nodes(transport, str(checkout), running, remove=remove)
    assert silent == []
    assert {leftover.node for leftover in found} <= {"node0"}
    return {
        Path(leftover.path).name: leftover.stays
        for leftover in found
        if leftover.path.startswith(str(checkout))
    }


def test_what_a_run_was_sent_goes_a_week_after_its_last_change(checkout):
    run_dir = ran(checkout, "over")
    assert ask(checkout, remove=True) == {".snapshot-over": CHANGED}
    assert ask(checkout, transport=a_week_later()) == {".snapshot-over": ""}
    assert (checkout / "logs" / ".snapshot-over").exists()  # it was only shown
    ask(checkout, transport=a_week_later(), remove=True)
    assert {path.name for path in (checkout / "logs").iterdir()} == {".keep", "over"}
    assert (run_dir / "checkpoints" / "step_1" / "model.pt").exists()


def test_run_files_stay_while_run_may_be_active(checkout):
    ran(checkout, "led")
    found = ask(checkout, running=["led"], transport=a_week_later(), remove=True)
    assert found == {".snapshot-led": "its run is not over"}
    assert (checkout / "logs" / ".snapshot-led").exists()


@pytest.mark.parametrize("changed", [".snapshot-run/train.py", "run/workers/rank_00000.out"])
def test_the_newest_file_of_a_run_decides(checkout, monkeypatch, changed):
    ran(checkout, "run")
    newest_s = max(path.lstat().st_ctime for path in (checkout / "logs").rglob("*"))
    later = SimpleNamespace(time=lambda: newest_s + node_facts.ACTIVE_S)
    monkeypatch.setattr(node_facts, "time", later)

    def is_used() -> bool:
        left = node_facts.leftovers({"node": "0", "folders": {"0": str(checkout)}})
        (entry,) = (entry for entry in left if entry["path"].startswith(str(checkout)))
        return bool(entry["used"])

    assert not is_used()
    path = checkout / "logs" / changed
    while path.lstat().st_ctime <= newest_s:  # a kernel updates it every few milliseconds
        path.write_text("1234")
    assert is_used()


def test_a_link_is_no_leftover(checkout):
    (checkout / "logs" / ".snapshot-link").symlink_to(ran(checkout, "run"))
    assert [*ask(checkout)] == [".snapshot-run"]


def test_a_folder_that_was_not_sent_is_not_looked_into(checkout):
    ran(checkout, "over")
    (checkout / node_facts.MARKER).unlink()
    assert ask(checkout) == {}


def test_a_node_that_sees_this_checkout_has_nothing_of_its_own(checkout):
    ran(checkout, "over")
    assert on_nodes(local_transport(2), None, [], remove=True) == ([], [])


def test_file_that_a_node_keeps_is_not_called_removed(checkout, monkeypatch):
    ran(checkout, "over")
    answered = Survey.ask

    def silent(survey, function, *args, **asked):
        if function is node_facts.remove_leftovers:
            return {}
        return answered(survey, function, *args, **asked)

    monkeypatch.setattr(Survey, "ask", silent)
    found, lines = on_nodes(a_week_later(), str(checkout), [], remove=True)
    own = [leftover for leftover in found if leftover.path.startswith(str(checkout))]
    assert {leftover.error for leftover in own} == {UNKNOWN} and len(lines) == 1


def test_file_that_came_into_use_is_not_called_removed(checkout):
    ran(checkout, "begun")
    path = str(checkout / "logs" / ".snapshot-begun")
    asked = {"node": "0", "folders": {"0": str(checkout)}}
    failed = node_facts.remove_leftovers({**asked, "paths": {"0": [path]}})
    assert failed == {path: "a run has begun to use it"} and Path(path).exists()


def test_a_node_that_does_not_answer_is_an_error(checkout):
    ran(checkout, "over")
    transport = local_transport(2)
    commands = [transport.commands[0], ["false"]]
    found, silent = on_nodes(replace(transport, commands=commands), str(checkout), [], remove=False)
    assert found and len(silent) == 1 and silent[0].startswith("node1: ")
