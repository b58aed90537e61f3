"""Nodes with homes of their own on this machine copy data from a shared disk with real rsync."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from configs.settings.launch import Sending
from launch.nodes import node_data
from launch.nodes.sending import copy_data, problems
from launch.nodes.survey import LOAD, Survey, Transport
from muster.writing import in_use
from tests.commands import refusal
from tests.launch.submit import wait_until
from tests.required import need
from tests.written import executable, write

FILES = {"a.txt": "first", "deep/b.bin": b"\0" * 200_000, "deep/er/c": "", "z": "last"}
# Takes rsync's place on one node: copies as it does, but only after a file exists.
LATE = """#!/bin/bash
touch {folder}/started
until [ -e {folder}/go ]; do sleep 0.05; done
exec {rsync} "$@"
"""


class Nodes:
    """Simulated machines, each of which is a home below a folder."""

    def __init__(self, homes: Path, *names: str) -> None:
        self.names = names
        self._homes = homes
        for name in names:
            self.home(name).mkdir(parents=True, exist_ok=True)

    def home(self, name: str) -> Path:
        return self._homes / name

    def transport(self) -> Transport:
        def explain(index: int, code: int, text: str) -> str:
            return f"{self.names[index]}: lost ({code})"

        return Transport(
            self.names, [*map(self._words, range(len(self.names)))], explain, renames=False
        )

    def _words(self, index: int) -> list[str]:
        home = self.home(self.names[index])
        env = [f"HOME={home}", f"TMPDIR={home}", f"XDG_STATE_HOME={home}/state"]
        env.append(f"PATH={home}/bin:{os.environ['PATH']}")
        return ["env", *env, sys.executable, "-c", LOAD, str(index)]

    def have(self, sending: str | Path, *, quiet: bool = False) -> list[Path]:
        parsed = Sending.parse(str(sending))
        return [*map(Path, copy_data(parsed, self.names, self.transport(), None, quiet=quiet))]


@pytest.fixture
def source(tmp_path) -> Path:
    folder = write(tmp_path / "data", FILES)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("deep/b.bin")
    (folder / "z").chmod(0o777)
    Path(os.fsdecode(bytes(folder) + b"/\xff\xfe")).write_text("not UTF-8")
    os.utime(folder / "a.txt", ns=(1, 1_700_000_000_123_456_789))
    return folder


@pytest.fixture
def nodes(tmp_path) -> Callable[..., Nodes]:
    need("rsync")
    return lambda *names: Nodes(tmp_path / "homes", *names)


def content(folder: Path) -> dict[str, bytes | str]:
    """Everything in a folder except our mark."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif name != node_data.DATA_MARK:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found


def change(path: Path, text: str) -> None:
    """Write a file and give it a modification time in another second."""
    path.write_text(text)
    os.utime(path, (1_600_000_000, 1_600_000_000))


def sending_folder(place: Path) -> Path:
    return Path(node_data._sending_folder(str(place)))


def inodes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.lstat().st_ino for path in folder.rglob("*")}


# -- before nodes are asked -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["gztar", "zip"])
@pytest.mark.parametrize(
    ("name", "place", "expected"),
    [
        ("it's a set", None, "tmp dir/it's a set"),
        ('we"ird $x `id`', None, 'tmp dir/we"ird $x `id`'),
        (".hid", None, "tmp dir/hid"),
        ("set", '~/a "b" $(id) $X', 'root/a "b" $(id) x'),
        ("set", "~somebody/${X}", "somebody/x"),
    ],
)
def test_line_that_unpacks_an_archive_does_so(tmp_path, ending, name, place, expected):
    packed = write(tmp_path / "packed", {"train/a.txt": "first"})
    archive = Path(shutil.make_archive(str(tmp_path / name), ending, packed))
    (problem,) = problems(Sending(str(archive), place), tmp_path)
    line = problem.partition("in FILE: ")[2]
    if place and "somebody" in place:  # a user without a home here
        assert line.count(' ~somebody/"${X}"') == 2 and line.endswith('=~somebody/"${X}"')
        line = line.replace("~somebody", str(tmp_path / "somebody"))
    homes = {"TMPDIR": str(tmp_path / "tmp dir"), "HOME": str(tmp_path / "root"), "X": "x"}
    argv = ["bash", "-c", f'{line} && printf %s "$MUSTER_DATA"']
    done = subprocess.run(
        argv, env={**os.environ, **homes}, capture_output=True, text=True, check=True
    )
    assert done.stdout == str(tmp_path / expected)
    assert content(Path(done.stdout)) == content(packed)


@pytest.mark.parametrize("target", ["/etc", "../../x"])
def test_symbolic_link_that_leads_outside_the_source_is_refused(source, nodes, target):
    (source / "deep/out").symlink_to(target)
    assert refusal(nodes("node0").have, f"{source}:~/set") == (
        f"--send: {source}/deep/out is a symbolic link to {target}, which is an absolute "
        "path, or outside the folder; replace the link with a copy"
    )


# -- the data arrive ------------------------------------------------------------------------------


def test_every_node_gets_the_data_and_a_second_run_sends_nothing(source, nodes, capsys):
    two = nodes("node0", "node1")
    places = two.have(f"{source}:~/set")
    assert places == [two.home(name) / "set" for name in two.names]
    assert f"sending {source} (200.0 kB) to 2 nodes" in capsys.readouterr().err
    for place in places:
        assert content(place) == content(source)
        assert (place / "a.txt").stat().st_mtime_ns == 1_700_000_000_123_456_789
        assert stat.S_IMODE((place / "z").stat().st_mode) == 0o755  # nobody else may write
        assert not sending_folder(place).exists()
    before = [*map(inodes, places)]
    assert two.have(f"{source}:~/set") == places
    assert "already complete, nothing to send" in capsys.readouterr().err
    assert [*map(inodes, places)] == before
    shutil.rmtree(places[1])
    two.have(f"{source}:~/set", quiet=True)
    assert content(places[1]) == content(source) and capsys.readouterr().err == ""
    assert inodes(places[0]) == before[0]


def test_added_files_stay_while_the_source_is_unchanged(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    write(place, {"cache/results": "mine"})
    change(place / "z", "mine")  # as a database changes its lock file
    before = content(place)
    assert one.have(f"{source}:~/set") == [place]
    assert content(place) == before


def test_changed_source_replaces_data_and_keeps_equal_files_on_disk(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    before = inodes(place)
    change(source / "a.txt", "other")  # of the same size
    (source / "z").unlink()
    (source / "link").unlink()
    (source / "link").symlink_to("a.txt")
    one.have(f"{source}:~/set")
    assert content(place) == content(source)
    after = inodes(place)
    assert after["deep/b.bin"] == before["deep/b.bin"] and after["a.txt"] != before["a.txt"]
    assert not sending_folder(place).exists()


@pytest.mark.parametrize("changed", ["added", "z", "deep/er/new/"])
def test_files_changed_at_the_place_are_not_lost_to_a_changed_source(source, nodes, changed):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    if changed.endswith("/"):
        (place / changed).mkdir()
    else:
        change(place / changed, "mine")
    change(source / "a.txt", "newer")
    before = content(place)
    error = refusal(one.have, f"{source}:~/set")
    assert error.startswith(f"node0: {place} is not up to date, and sending it again would delete")
    assert f"changed: {changed}; " in error
    assert error.endswith(f"choose another place: --send {source}:{place}-sent")
    assert content(place) == before and not sending_folder(place).exists()


def test_missing_file_is_sent_again_unless_others_were_added_or_changed(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    before = inodes(place)
    (place / "z").unlink()
    one.have(f"{source}:~/set")
    assert content(place) == content(source)
    assert inodes(place)["deep/b.bin"] == before["deep/b.bin"]
    (place / "a.txt").unlink()
    change(place / "z", "mine")
    error = refusal(one.have, f"{source}:~/set")
    assert f"node0: {place} has no a.txt, and sending it again would delete" in error
    assert "changed: z; " in error and not (place / "a.txt").exists()


def test_data_that_a_run_is_using_are_not_replaced(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    before = content(place)
    with in_use(place / node_data.DATA_MARK):
        assert one.have(f"{source}:~/set") == [place]
        change(source / "a.txt", "newer")
        error = refusal(one.have, f"{source}:~/set")
        assert f"node0: {place} is not up to date, but a run is using it; wait for it" in error
    assert content(place) == before
    one.have(f"{source}:~/set")
    assert content(place) == content(source)


def test_users_own_folder_is_used_if_equal_and_never_changed(source, nodes, capsys):
    one = nodes("node0")
    assert one.have(source) == [source]  # at the same path, as on a disk that nodes share
    assert "nothing to send" in capsys.readouterr().err
    theirs = one.home("node0") / "theirs"
    shutil.copytree(source, theirs, symlinks=True)  # keeps their times, as rsync and tar do
    assert one.have(f"{source}:~/theirs") == [theirs]
    assert not (theirs / node_data.DATA_MARK).exists()
    change(theirs / "a.txt", "First")
    before = content(theirs)
    assert one.have(f"{source}:~/theirs") == [theirs / "data"]  # inside it, as cp does
    assert {name: each for name, each in content(theirs).items() if "data" not in name} == before
    write(one.home("node0"), {"other/data/a": ""})
    error = refusal(one.have, f"{source}:~/other")
    place = one.home("node0") / "other/data"
    assert f"node0: {place} already exists and differs from {source}; choose" in error
    assert content(place) == {"a": b""}


def test_unreadable_or_huge_folder_at_the_place_gets_a_new_folder(source, nodes):
    """Such as /tmp, with folders of other users and more files than the source has."""
    one = nodes("node0")
    write(one.home("node0"), dict.fromkeys(map(str, range(100)), ""))
    (one.home("node0") / "closed").mkdir(mode=0)
    assert one.have(f"{source}:$TMPDIR") == [one.home("node0") / "data"]


def test_variable_in_place_is_expanded_by_node_without_shell(source, nodes, tmp_path):
    two = nodes("node0", "node1")
    wild = "$(touch pwned)`id`;&\\*'\""
    places = two.have(f"{source}:$TMPDIR/${{HOME}}/{wild}")
    for place, name in zip(places, two.names, strict=True):
        home = two.home(name)
        assert str(place) == f"{home}/{str(home).lstrip('/')}/{wild}"
        assert content(place) == content(source)
    assert refusal(two.have, f"{source}:$NOWHERE/x") == "\n".join(
        f"{name}: --send: $NOWHERE is not set on this node" for name in two.names
    )
    assert not [*tmp_path.rglob("pwned")] and not Path("pwned").exists()


def test_read_only_folders_are_sent_and_can_be_replaced(source, nodes):
    one = nodes("node0")
    (source / "deep").chmod(0o555)
    source.chmod(0o555)
    try:
        (place,) = one.have(f"{source}:~/set")
        assert content(place) == content(source)
        assert stat.S_IMODE(place.stat().st_mode) == 0o755
    finally:
        source.chmod(0o755)
        (source / "deep").chmod(0o755)


def test_an_interrupted_copy_makes_no_place_and_is_continued(source, nodes, tmp_path):
    one = nodes("node0")
    place = one.home("node0") / "set"
    write(source, {f"many/{number}": os.urandom(20_000) for number in range(100)})
    killed = executable(
        one.home("node0") / "bin/rsync",
        f'#!/bin/bash\n{shutil.which("rsync")} --bwlimit=100k "$@" & rsync=$!\n'
        f"until [ $(ls {sending_folder(place)}/data/many 2>/dev/null | wc -l) -ge 5 ]\n"
        "do sleep 0.05; done\nkill $rsync\nwait $rsync\n",
    )
    error = refusal(one.have, f"{source}:~/set")
    assert error.startswith(f"node0: {place}: rsync error: received SIG")
    assert "; run the same command again" in error
    assert not place.exists()
    came = inodes(sending_folder(place) / "data")
    assert 5 <= len([name for name in came if name.startswith("many/")]) < 100
    killed.unlink()
    change(source / "many/99", "changed since")
    (source / "many/0").unlink()
    one.have(f"{source}:~/set")
    after = inodes(place)
    kept = [name for name, inode in came.items() if after.get(name) == inode]
    assert len([name for name in kept if name.startswith("many/")]) >= 4
    assert content(place) == content(source) and not sending_folder(place).exists()


# rsync's message about a full disk is often lost on the way through ssh.
SILENT = '#!/bin/bash\n{rsync} "$@" 2>/dev/null\n'


@pytest.mark.needs("root")
@pytest.mark.parametrize("is_silent", [False, True])
def test_a_full_disk_is_named_and_nothing_stays_on_it(source, nodes, is_silent):
    two = nodes("node0", "node1")
    if is_silent:
        rsync = SILENT.format(rsync=shutil.which("rsync"))
        executable(two.home("node1") / "bin/rsync", rsync)
    write(source, {"large": os.urandom(3_000_000)})
    full = two.home("node1") / "full"
    full.mkdir()
    subprocess.run(["mount", "-n", "-t", "tmpfs", "-o", "size=2m", "tmpfs", full], check=True)
    try:
        error = refusal(two.have, f"{source}:~/full/set")
        assert error == (
            f"node1: {full}/set: No space left on device; the partial copy was removed; free "
            "some space, or choose another disk"
        )
        assert [*full.iterdir()] == []
    finally:
        subprocess.run(["umount", full], check=True)
    assert not (two.home("node0") / "full/set").exists()


def test_source_that_changes_while_it_is_sent_is_named(source, nodes, tmp_path):
    one = nodes("node0")
    rsync = shutil.which("rsync")
    late = f'#!/bin/bash\n{rsync} "$@"\ntouch -d 2020-01-01 {source}/deep/b.bin\n'
    executable(one.home("node0") / "bin/rsync", late)
    assert refusal(one.have, f"{source}:~/set") == (
        f"--send: {source}/deep/b.bin changed while it was being sent; start the run again"
    )
    assert not (one.home("node0") / "set").exists()
    one.have(f"{source}:~/set")


def test_copy_that_lacks_a_file_is_not_completed(source, nodes):
    """This holds even if rsync reports no error."""
    one = nodes("node0")
    place = one.home("node0") / "set"
    copy = sending_folder(place) / "data"
    loses = f'#!/bin/bash\n{shutil.which("rsync")} "$@"\nrm {copy}/z\n'
    rsync = executable(one.home("node0") / "bin/rsync", loses)
    assert f"node0: {copy} differs from the source" in refusal(one.have, f"{source}:~/set")
    assert not place.exists()
    rsync.unlink()
    assert content(*one.have(f"{source}:~/set")) == content(source)


def test_place_inside_the_source_is_refused(source, nodes):
    one = nodes("node0")
    before = content(source)
    error = refusal(one.have, f"{source}:{source}/deep/set")
    assert error == (
        f"node0: {source}/deep/set is inside {source}, the folder to send; choose another place"
    )
    assert content(source) == before


def test_symbolic_link_at_the_place_stays_and_its_folder_gets_the_data(source, nodes):
    one = nodes("node0")
    link, target = one.home("node0") / "set", one.home("node0") / "disk/real"
    link.symlink_to(target)
    assert one.have(f"{source}:~/set") == [target]  # which is created
    change(source / "a.txt", "newer")
    assert one.have(f"{source}:~/set") == [target]
    assert link.is_symlink() and content(target) == content(source)


def test_nodes_that_share_a_disk_get_the_data_once(source, nodes, tmp_path):
    three = nodes("node0", "node1", "node2")
    for name in ("node1", "node2"):
        three.home(name).rmdir()
        three.home(name).symlink_to(three.home("node0"))
    copies = f'#!/bin/bash\necho >> {tmp_path}/copies\nexec {shutil.which("rsync")} "$@"\n'
    executable(three.home("node0") / "bin/rsync", copies)
    places = three.have(f"{source}:~/set")
    assert (tmp_path / "copies").read_text() == "\n" and len(set(places)) == 1
    assert content(places[0]) == content(source)


def test_second_of_two_runs_waits_and_then_sends_nothing(source, nodes, tmp_path, capsys):
    one = nodes("node0")
    late = LATE.format(folder=tmp_path, rsync=shutil.which("rsync"))
    script = executable(one.home("node0") / "bin/rsync", late)
    first = threading.Thread(target=one.have, args=(f"{source}:~/set",))
    second = threading.Thread(target=one.have, args=(f"{source}:~/set",))
    first.start()
    wait_until((tmp_path / "started").exists)
    script.unlink()  # bash may still read it
    executable(script, "#!/bin/bash\nexit 1\n")
    second.start()
    place = one.home("node0") / "set"
    line = f"waiting for another run that is sending data to node0: {place}\n"
    printed = []
    try:
        wait_until(lambda: printed.append(capsys.readouterr().err) or line in printed[-1])
    finally:
        (tmp_path / "go").touch()
        first.join()
        second.join()
    assert content(place) == content(source)
    assert not sending_folder(place).exists()


def test_nodes_that_lack_rsync_or_the_source_are_all_named(source, nodes, tmp_path, monkeypatch):
    two = nodes("node0", "node1")
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tools))
    assert refusal(two.have, f"{source}:~/set") == "\n".join(
        f"{name}: rsync is not installed; on that node, run: sudo apt-get install rsync"
        for name in two.names
    )


@pytest.mark.needs("root")
def test_data_of_another_user_is_not_trusted(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    os.chown(place, 1234, 1234)
    assert one.have(f"{source}:~/set") == [place / "data"]  # although the content is the same
    own = write(one.home("node0"), {"own/mine": ""}) / "own"
    state = (own / "mine").stat()
    entries = [["mine", 0, state.st_mtime_ns, ""]]
    write(own, {node_data.DATA_MARK: ["", entries]})
    os.chown(own / node_data.DATA_MARK, 1234, 1234)  # a forged one, in a folder that all may write
    assert one.have(f"{source}:~/own") == [own / "data"] and (own / "mine").exists()
    os.chown(source, 1234, 1234)
    assert one.have(source) == [source]  # the user named this folder
    folder = sending_folder(one.home("node0") / "new")
    folder.mkdir()
    os.chown(folder, 1234, 1234)
    assert f"node0: {folder}: the folder is not yours" in refusal(one.have, f"{source}:~/new")


# -- what is left ---------------------------------------------------------------------------------


def left(nodes: Nodes, **paths: list[Path]) -> list[dict]:
    with Survey(nodes.transport(), node_data) as survey:
        if paths:
            by_node = {str(index): [*map(str, paths[n])] for index, n in enumerate(nodes.names)}
            answers = survey.ask(node_data.remove_data, paths=by_node)
        else:
            answers = survey.ask(node_data.data_left)
        return [answer.value for answer in answers.values()]


def test_nodes_list_sent_data_and_remove_only_unused_folders(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    rsync = executable(one.home("node0") / "bin/rsync", "#!/bin/bash\nexit 1\n")
    refusal(one.have, f"{source}:~/cut")
    rsync.unlink()
    folder = sending_folder(one.home("node0") / "cut")
    found = {(each.path, each.whole, each.used) for each in left(one)[0]}
    assert found == {(str(place), True, False), (str(folder), False, False)}
    with in_use(place / node_data.DATA_MARK):
        used = {each.path: each.used for each in left(one)[0]}
        assert used == {str(place): True, str(folder): False}
        assert left(one, node0=[place, folder]) == [{str(place): "a run has begun to use it"}]
    assert place.exists() and not folder.exists()
    left(one, node0=[place, source])  # only what --send created
    assert not place.exists() and source.exists()
    assert left(one) == [()]


def test_a_place_of_another_host_with_the_same_home_stays_known(source, nodes):
    one = nodes("node0")
    one.have(f"{source}:~/set")
    (own,) = (one.home("node0") / "state/muster/data").iterdir()
    other = own.with_name(f"{socket.gethostname()}-b-{'0' * 16}")
    other.symlink_to("/only/there")
    assert len(left(one)[0]) == 1
    assert own.is_symlink() and other.is_symlink()


@pytest.mark.parametrize("text", ["", "[]", "{}", "[1, 2]", '["x", 1]'])
def test_a_marker_of_another_form_is_no_marker(source, nodes, text):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    (place / node_data.DATA_MARK).write_text(text)
    assert one.have(f"{source}:~/set") == [place]  # the content is the same
