"""How a node compares and receives data; its Python may be old."""

import os
import shutil
import signal
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import vermin

from launch.nodes import node_data
from launch.nodes.survey import Survey, local_transport
from tests.launch.submit import alive, wait_until
from tests.required import need
from tests.written import executable, write


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    """Give each test its own list of places."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def version(folder: Path) -> str:
    return node_data.version_of(node_data.entries_of(str(folder)))


def test_version_changes_with_all_that_rsync_compares_and_no_more(tmp_path):
    folder = write(tmp_path / "data", {"a": "first", "deep/b": "x"})
    (folder / "link").symlink_to("a")
    seen = [version(folder)]
    second = int((folder / "a").stat().st_mtime)
    os.utime(folder / "a", ns=(0, second * 10**9 + 7))  # some disks store only whole seconds
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


def test_first_line_of_rsync_or_ssh_is_the_cause_or_else_the_last():
    text = (
        "setlocale: no such locale\n--link-dest arg does not exist: /x\n"
        "rsync: connection unexpectedly closed\nrsync error\n"
    )
    assert node_data.rsync_error(12, text) == "rsync: connection unexpectedly closed"
    assert node_data.rsync_error(255, "Welcome\nssh: no route\nrsync error\n") == "ssh: no route"
    assert node_data.rsync_error(255, "Welcome\nConnection reset\n\n") == "Connection reset"
    assert node_data.rsync_error(11, "--link-dest arg") == "rsync ended with exit code 11"


def about(folder: Path, *, copies: bool) -> dict:
    """The fields of the first question about a place."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    entries = [*node_data.entries_of(str(source))]
    question = {"source": str(source), "place": str(folder / "set"), "name": "", "copies": copies}
    question |= {"version": node_data.version_of(entries), "count": len(entries)}
    return question | {"owner": os.geteuid()}


def test_claim_that_the_leader_no_longer_keeps_is_given_up(tmp_path):
    """For example, the link broke, which the node's Python would not notice for hours."""
    source = Path(node_data.__file__).read_text()
    quick = ModuleType("quick")
    quick.__file__ = str(tmp_path / "quick.py")
    Path(quick.__file__).write_text(source.replace("SILENT_S = 300", "SILENT_S = 1"))

    def claim(survey: Survey) -> str:
        return survey.ask(node_data.claim_destination)[0].value.state

    with Survey(local_transport(1), quick) as first, Survey(local_transport(1), node_data) as other:
        for survey in (first, other):
            survey.ask(node_data.find_destination, **about(tmp_path, copies=False))
        assert claim(first) == "claimed"
        wait_until(lambda: claim(other) == "claimed")


def test_own_rsync_of_a_node_ends_with_the_survey(tmp_path, monkeypatch):
    rsync = executable(tmp_path / "bin" / "rsync", "#!/bin/bash\nexec tail -f $0\n")
    monkeypatch.setenv("PATH", str(rsync.parent), prepend=":")
    with Survey(local_transport(1), node_data) as survey:
        survey.ask(node_data.find_destination, **about(tmp_path, copies=True))
        survey.ask(node_data.claim_destination)
        wait_until(lambda: alive(rsync))  # its arguments appear a moment after it starts
        assert not survey.ask(node_data.renew_claim)[0].value.is_over
    wait_until(lambda: alive(rsync) == [])


def test_place_stays_locked_while_rsync_outlives_the_survey(tmp_path, monkeypatch):
    """SIGTERM ends the node's Python, but not its rsync."""
    rsync = executable(
        tmp_path / "bin" / "rsync", "#!/bin/bash\nuntil [ -e ${0}_end ]; do sleep 0.05; done\n"
    )
    monkeypatch.setenv("PATH", str(rsync.parent), prepend=":")
    question = about(tmp_path, copies=True)
    with Survey(local_transport(1), node_data) as other:
        other.ask(node_data.find_destination, **question)

        def claim() -> str:
            return other.ask(node_data.claim_destination)[0].value.state

        with Survey(local_transport(1), node_data) as first:
            first.ask(node_data.find_destination, **question)
            first.ask(node_data.claim_destination)
            (process, _, _) = first._starts[0]
            process.terminate()
            process.wait()
        try:
            wait_until(lambda: alive(rsync))
            assert claim() == "taken"
        finally:
            Path(f"{rsync}_end").touch()
        wait_until(lambda: claim() == "claimed")


# -- questions that this process answers itself ---------------------------------------------------


@pytest.fixture
def sent(tmp_path, monkeypatch) -> Path:
    """A place with data of an older version of the source."""
    need("rsync")
    write(tmp_path / "source", {"a": "first"})
    place = tmp_path / "set"
    copy(tmp_path, monkeypatch)
    assert (place / "a").read_text() == "first"
    write(tmp_path / "source", {"a": "second"})
    return place


def copy(folder: Path, monkeypatch) -> dict:
    """Send data as a node does, and return the last answer."""
    state = {"source": {}, "place": "", "state": "", "lock": -1, "copy": None, "errors": None}
    monkeypatch.setattr(node_data, "sending", SimpleNamespace(**state))
    monkeypatch.setattr(node_data.atexit, "register", lambda _: None)
    for question in (node_data.find_destination, node_data.claim_destination):
        answer = question(about(folder, copies=True))
        if "failed" in answer:
            return answer
    wait_until(lambda: node_data.renew_claim({})["is_over"])
    node_data.sending.errors.close()
    return node_data.finish_transfer({})


def test_file_added_while_the_place_is_replaced_is_not_lost(sent, tmp_path, monkeypatch):
    rename = os.rename

    def adds(source: str, target: str) -> None:
        if source == str(sent):
            write(sent, {"added": "mine"})
        rename(source, target)

    monkeypatch.setattr(node_data.os, "rename", adds)
    assert "added or changed: added; " in copy(tmp_path, monkeypatch)["failed"]
    assert (sent / "added").read_text() == "mine" and (sent / "a").read_text() == "first"


def test_crash_while_the_place_is_replaced_loses_nothing(sent, tmp_path, monkeypatch):
    rename = os.rename

    def crashes(source: str, target: str) -> None:
        if target == str(sent):
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(node_data.os, "rename", crashes)
        with pytest.raises(KeyboardInterrupt):
            copy(tmp_path, monkeypatch)
    os.close(node_data.sending.lock)
    assert not sent.exists()
    write(Path(node_data._old_folder(str(sent))), {"added": "mine"})
    assert "added or changed: added; " in copy(tmp_path, monkeypatch)["failed"]
    os.close(node_data.sending.lock)
    (sent / "added").unlink()
    assert copy(tmp_path, monkeypatch) == {}
    assert (sent / "a").read_text() == "second"


def test_folder_made_while_an_old_one_is_removed_stays(sent, tmp_path, monkeypatch):
    rmtree = shutil.rmtree
    new = [sent / "new", Path(node_data.data_folder(str(sent))) / "new"]

    def removes(path: str, **options: bool) -> None:
        for each in new:
            each.parent.mkdir(parents=True, exist_ok=True)
            each.touch()
        rmtree(path, **options)

    monkeypatch.setattr(node_data.shutil, "rmtree", removes)
    assert node_data.remove_data({"node": "0", "paths": {"0": [str(sent)]}}) == {}
    assert all(each.exists() for each in new)


def test_transfer_begun_while_the_last_one_is_removed_stays(sent, tmp_path, monkeypatch):
    rmtree = shutil.rmtree
    new = Path(node_data.data_folder(str(sent))) / "new"

    def removes(path: str, **options: bool) -> None:
        if not new.parent.parent.exists():
            write(new.parent, {"new": ""})
        rmtree(path, **options)

    monkeypatch.setattr(node_data.shutil, "rmtree", removes)
    assert copy(tmp_path, monkeypatch) == {} and (sent / "a").read_text() == "second"
    assert new.exists()


def test_claim_lasts_longer_each_time_the_leader_keeps_it(monkeypatch):
    monkeypatch.setattr(node_data, "sending", SimpleNamespace(copy=None))
    signal.alarm(60)
    try:
        node_data.renew_claim({})
    finally:
        left_s = signal.alarm(0)
    assert left_s > 60


def test_nodes_side_of_sending_runs_on_python_3_8():
    visitor = vermin.visit(Path(node_data.__file__).read_text())
    assert visitor.minimum_versions()[1] <= (3, 8), f"vermin -vvv {node_data.__file__} says where"
