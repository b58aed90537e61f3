"""What a node compares, and that its Python may be old."""

import os
from pathlib import Path
from types import ModuleType

import pytest
import vermin

from launch.nodes import node_data
from launch.nodes.survey import Survey, local_transport
from tests.launch.submit import alive, wait_until
from tests.written import executable, write


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """The list of places is the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def version(folder: Path) -> str:
    return node_data.version_of(node_data.entries_of(str(folder)))


def test_version_changes_with_all_that_rsync_compares_and_no_more(tmp_path):
    folder = write(tmp_path / "data", {"a": "first", "deep/b": "x"})
    (folder / "link").symlink_to("a")
    seen = [version(folder)]
    second = int((folder / "a").stat().st_mtime)
    os.utime(folder / "a", ns=(0, second * 10**9 + 7))  # some disks keep whole seconds
    write(folder, {node_data.DATA_MARK: "[]"})
    assert version(folder) == seen[0]

    def is_new() -> bool:
        seen.append(version(folder))
        return len(seen) == len({*seen})

    os.utime(folder / "a", (0, second - 1))
    assert is_new()
    (folder / "deep/b").write_text("longer")
    assert is_new()
    (folder / "deep/empty").mkdir()
    assert is_new()
    (folder / "link").unlink()
    (folder / "link").symlink_to("deep/b")
    assert is_new()
    (folder / "deep/b").rename(folder / "deep/c")
    assert is_new()


def test_first_line_of_rsync_is_the_cause_but_not_that_of_a_new_place():
    text = (
        "--link-dest arg does not exist: /x\nrsync: connection unexpectedly closed\nrsync error\n"
    )
    assert node_data.rsync_error(12, text) == "rsync: connection unexpectedly closed"
    assert node_data.rsync_error(11, "--link-dest arg") == "rsync ended with exit code 11"


def about(folder: Path, *, copies: bool) -> dict:
    """The first question about a place."""
    source = {"source": str(folder), "version": "1", "count": 1, "copies": copies}
    return {"place": str(folder / "set"), "name": "", **source}


def test_claim_that_the_leader_no_longer_keeps_is_given_up(tmp_path):
    """As after a break of the link, which the node's Python would not notice for hours."""
    source = Path(node_data.__file__).read_text()
    quick = ModuleType("quick")
    quick.__file__ = str(tmp_path / "quick.py")
    Path(quick.__file__).write_text(source.replace("SILENT_S = 300", "SILENT_S = 1"))

    def claim(survey: Survey) -> str:
        return survey.ask(node_data.claim_data_place)[0].value.state

    with Survey(local_transport(1), quick) as first, Survey(local_transport(1), node_data) as other:
        for survey in (first, other):
            survey.ask(node_data.find_data_place, **about(tmp_path, copies=False))
        assert claim(first) == "claimed" and claim(other) == "taken"
        first.ask(node_data.keep_data_place)
        assert wait_until(lambda: claim(other) == "claimed")


def test_own_rsync_of_a_node_ends_with_the_survey(tmp_path, monkeypatch):
    rsync = executable(tmp_path / "bin" / "rsync", "#!/bin/bash\nexec tail -f $0\n")
    monkeypatch.setenv("PATH", str(rsync.parent), prepend=":")
    with Survey(local_transport(1), node_data) as survey:
        survey.ask(node_data.find_data_place, **about(tmp_path, copies=True))
        survey.ask(node_data.claim_data_place)
        assert alive(rsync)
        assert not survey.ask(node_data.keep_data_place)[0].value.over
    assert wait_until(lambda: alive(rsync) == [])


def test_nodes_side_of_sending_runs_on_python_3_8():
    visitor = vermin.visit(Path(node_data.__file__).read_text())
    assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {node_data.__file__} says where"
