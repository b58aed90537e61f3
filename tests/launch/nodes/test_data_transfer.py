"""Real receivers on this machine, with a home each, take data from this one."""

import io
import json
import os
import shutil
import signal
import socket
import stat
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import pytest

from configs.settings.launch import Sending
from launch.nodes import data_transfer, node_data
from launch.nodes.data_source import Source
from launch.nodes.data_transfer import have_data
from launch.nodes.survey import LOAD, Survey, Transport
from muster.errors import MusterError
from muster.writing import in_use
from tests.launch.submit import wait_until
from tests.written import write

FILES = {"a.txt": "first", "deep/b.bin": b"\0" * 200_000, "deep/er/c": "", "z": "last"}


# A link that ends, or stands still, after so many bytes, and what it leads to.
LINK = """
import os, subprocess, sys, time
stalls, left, words = sys.argv[1] == "stalls", int(sys.argv[2]), sys.argv[3:]
other = subprocess.Popen(words, stdin=subprocess.PIPE, bufsize=0)
while left and (data := os.read(0, min(left, 65536))):
    other.stdin.write(data)
    left -= len(data)
while stalls:
    time.sleep(1)
other.stdin.close()
other.wait()
sys.exit(1)
"""


def cut_after(count: int) -> list[str]:
    return [sys.executable, "-c", LINK, "ends", str(count)]


def stalled_after(count: int) -> list[str]:
    return [sys.executable, "-c", LINK, "stalls", str(count)]


class Nodes:
    """Machines that are homes below a folder."""

    def __init__(self, homes: Path, *names: str, through: Sequence[str] = ()) -> None:
        self.names = names
        self._homes = homes
        self._through = through  # what stands before the command that takes data
        for name in names:
            self.home(name).mkdir(parents=True, exist_ok=True)

    def home(self, name: str) -> Path:
        return self._homes / name

    def _words(self, index: int) -> list[str]:
        home = self.home(self.names[index])
        env = [f"HOME={home}", f"TMPDIR={home}", f"XDG_STATE_HOME={home}/state"]
        return ["env", *env, sys.executable, "-c", LOAD, str(index)]

    def transport(self) -> Transport:
        def explain(index: int, code: int, text: str) -> str:
            return f"{self.names[index]}: lost ({code})"

        commands = [self._words(index) for index in range(len(self.names))]
        return Transport(self.names, commands, explain, renames=False)

    def have(self, sending: str | Path, *, quiet: bool = False, copies: bool = False) -> list[Path]:
        """Have the data there; `copies`: the nodes see the source, and copy it by themselves."""
        command = None if copies else lambda index: [*self._through, *self._words(index)]
        parsed = Sending.parse(str(sending))
        places = have_data(parsed, self.names, self.transport(), command, quiet=quiet)
        return [*map(Path, places)]


@pytest.fixture
def source(tmp_path) -> Path:
    folder = write(tmp_path / "data", FILES)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("deep/b.bin")
    (folder / "z").chmod(0o777)
    os.utime(folder / "a.txt", ns=(1, 1_700_000_000_123_456_789))
    return folder


@pytest.fixture
def nodes(tmp_path) -> Callable[..., Nodes]:
    return lambda *names, **more: Nodes(tmp_path / "homes", *names, **more)


def content(folder: Path) -> dict[str, bytes | str]:
    """All that is in a folder, but our mark."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif name != node_data.DATA_MARK:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found


def work_of(place: Path) -> Path:
    return Path(node_data._work_of(str(place)))


def refusal(nodes: Nodes, sending: str, **how) -> str:
    with pytest.raises(MusterError) as refused:
        nodes.have(sending, **how)
    return str(refused.value)


@pytest.mark.parametrize("copies", [False, True])
def test_every_node_gets_the_data_and_a_second_run_sends_nothing(source, nodes, capsys, copies):
    two = nodes("node0", "node1")
    places = two.have(f"{source}:~/set", copies=copies)
    assert places == [two.home(name) / "set" for name in two.names]
    assert f"sending {source} (200.0 kB) to 2 nodes" in capsys.readouterr().err
    for place in places:
        assert content(place) == content(source)
        assert (place / "a.txt").stat().st_mtime_ns == 1_700_000_000_123_456_789
        assert stat.S_IMODE((place / "z").stat().st_mode) == 0o755  # nobody else may write
        assert not work_of(place).exists()
    before = [(place / "z").stat().st_ino for place in places]
    assert two.have(f"{source}:~/set", copies=copies) == places
    assert "nothing is sent: they are there already" in capsys.readouterr().err
    assert [(place / "z").stat().st_ino for place in places] == before
    shutil.rmtree(places[1])
    two.have(f"{source}:~/set", copies=copies, quiet=True)
    assert content(places[1]) == content(source) and capsys.readouterr().err == ""
    assert (places[0] / "z").stat().st_ino == before[0]


def test_other_files_of_the_same_content_are_not_sent_again(source, nodes, tmp_path, capsys):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    shutil.copytree(source, tmp_path / "copy", symlinks=True)
    capsys.readouterr()
    assert one.have(f"{tmp_path}/copy:~/set") == [place]
    assert "nothing is sent" in capsys.readouterr().err


def test_new_data_replaces_old_and_is_refused_over_users_files(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    (source / "a.txt").write_text("other")  # of the same size
    (source / "deep/b.bin").unlink()
    (source / "link").unlink()
    one.have(f"{source}:~/set")
    assert content(place) == content(source)
    (place / "results").write_text("mine")
    one.have(f"{source}:~/set")  # all that was sent is there
    (source / "a.txt").write_text("newer")
    error = refusal(one, f"{source}:~/set")
    assert f"node0: {place} has files that were not sent, or were changed there: results" in error
    assert error.endswith(f"choose another place: --send {source}:{place}-sent")
    (place / "results").unlink()
    (place / "z").write_text("mine")
    assert "were changed there: z; " in refusal(one, f"{source}:~/set")


def test_users_own_data_folder_is_used_or_left_unchanged(source, nodes, capsys):
    """Without a place, as on a node that has the data already at the same path."""
    one = nodes("node0")
    assert one.have(source) == [source]  # the same files, as on a shared disk
    assert "nothing is sent" in capsys.readouterr().err
    theirs = one.home("node0") / "theirs"
    shutil.copytree(source, theirs, symlinks=True)
    assert one.have(f"{source}:~/theirs") == [theirs]
    assert not (theirs / node_data.DATA_MARK).exists()
    (theirs / "a.txt").write_text("First")
    before = content(theirs)
    assert one.have(f"{source}:~/theirs") == [theirs / "data"]  # beside it, as cp does
    assert {name: each for name, each in content(theirs).items() if "data" not in name} == before


def test_path_with_other_content_is_refused_with_send_flag(source, nodes, tmp_path):
    one = nodes("node0")
    theirs = write(tmp_path / "theirs", {"a.txt": "else"})
    sending = Sending(str(source))
    source.rename(tmp_path / "aside")
    theirs.rename(source)

    def read(path: Path) -> Source:
        return Source(tmp_path / "aside")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_transfer, "Source", lambda path: _as(read(path), source))
        with pytest.raises(MusterError) as refused:
            have_data(sending, one.names, one.transport(), None)
    assert str(refused.value) == (
        f"node0: {source} exists there, and Muster did not make it; choose another place: "
        f"--send {source}:{source}-sent"
    )
    assert content(source) == {"a.txt": b"else"}


def _as(source: Source, path: Path) -> Source:
    source.path = path
    return source


def test_interrupted_transfer_makes_no_folder_and_is_continued_by_next(source, nodes, tmp_path):
    data = os.urandom(3_000_000)
    write(source, {"y/large": data})
    # One after the other: of two at once, the first to be cut ends the other, too.
    for name in ("node1", "node0"):
        broken = nodes(name, through=cut_after(1_500_000))
        error = refusal(broken, f"{source}:~/set")
        assert f"{name}: lost" in error and "the same command goes on from what came" in error
    place = broken.home("node0") / "set"
    assert not place.exists()
    (part,) = work_of(place).glob("sent/y/large")
    came = part.stat().st_size
    assert 1_000_000 < came < 1_500_000
    began = []
    feed = data_transfer._Transfer._send

    def send(transfer, to, index, offset):
        began.append((transfer.name, offset))
        feed(transfer, to, index, offset)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_transfer._Transfer, "_send", send)
        nodes("node0").have(f"{source}:~/set")
    assert began == [("node0", came)]
    assert content(place) == content(source) and not work_of(place).exists()
    # of another state of the source nothing is taken from what came
    (source / "a.txt").write_text("changed since")
    nodes("node1").have(f"{source}:~/set")
    assert content(broken.home("node1") / "set") == content(source)


@pytest.mark.parametrize(
    ("patience", "count"), [("NODE_COMPARES_DATA_S", 50), ("NODE_TAKES_DATA_S", 1_500_000)]
)
def test_a_node_on_which_nothing_moves_is_named_in_time(
    source, nodes, monkeypatch, patience, count
):
    """Such as with a disk that hangs: before it answers, and while data come."""
    write(source, {"y/large": os.urandom(20_000_000)})
    monkeypatch.setattr(data_transfer, patience, 2.0)
    one = nodes("node0", through=stalled_after(count))
    error = refusal(one, f"{source}:~/set")
    assert error.startswith("node0: nothing has moved for 2 s; does a disk hang, there or here?")
    assert not (one.home("node0") / "set").exists()


def test_data_with_wrong_digest_are_refused_and_removed(source, nodes):
    one = nodes("node0")
    other: Future[str] = Future()
    other.set_result("0" * 64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "content", other)
        error = refusal(one, f"{source}:~/set")
    assert error == "node0: what came is not what was sent; was it changed meanwhile?"
    place = one.home("node0") / "set"
    assert not place.exists() and not work_of(place).exists()


def test_a_file_that_shrinks_while_it_is_sent_is_named(source, nodes):
    one = nodes("node0")
    real = Source.request

    def request(self, place):
        os.truncate(source / "deep/b.bin", 5)
        return real(self, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Source, "request", request)
        error = refusal(one, f"{source}:~/set")
    assert error == f"--send: {source}/deep/b.bin was changed while it was sent; start it again"


def test_nodes_that_share_a_disk_get_the_data_once(source, nodes, tmp_path):
    write(source, {"large": os.urandom(20_000_000)})
    three = nodes("node0", "node1", "node2")
    for name in ("node1", "node2"):
        shutil.rmtree(three.home(name))
        three.home(name).symlink_to(three.home("node0"))
    taken = []
    real = data_transfer._Transfer._send

    def send(transfer, *args):
        taken.append(transfer.name)
        real(transfer, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_transfer._Transfer, "_send", send)
        places = three.have(f"{source}:~/set")
    assert len(taken) == 1 and len(set(places)) == 1
    assert content(places[0]) == content(source)


def test_variable_in_place_is_expanded_by_node_without_shell(source, nodes, tmp_path):
    two = nodes("node0", "node1")
    wild = "$(touch pwned)`id`;&\\*'\""
    places = two.have(f"{source}:$TMPDIR/${{HOME}}/{wild}")
    for place, name in zip(places, two.names, strict=True):
        home = two.home(name)
        assert str(place) == f"{home}/{str(home).lstrip('/')}/{wild}" and place.is_dir()
    assert refusal(two, f"{source}:$NOWHERE/x") == "\n".join(
        f"{name}: --send: $NOWHERE is not set there" for name in two.names
    )
    assert two.have(f"{source}:$TMPDIR") == [two.home(name) / "data" for name in two.names]
    assert not [*tmp_path.rglob("pwned")] and not Path("pwned").exists()


def test_a_disk_without_room_is_refused_before_anything_is_sent(source, nodes):
    one = nodes("node0")
    sparse = source / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 43)
    error = refusal(one, f"{source}:~/set")
    assert "free, and" in error and "make room there, or name a place on another disk" in error
    assert not work_of(one.home("node0") / "set").exists()


@pytest.mark.needs("root")
def test_data_of_another_user_is_not_trusted(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    os.chown(place, 1234, 1234)
    assert one.have(f"{source}:~/set") == [place]  # its content is what counts
    (place / "a.txt").write_text("theirs")
    assert one.have(f"{source}:~/set") == [place / "data"]
    work = work_of(one.home("node0") / "new")
    work.mkdir()
    os.chown(work, 1234, 1234)
    assert f"node0: {work}: it is not a folder of yours" in refusal(one, f"{source}:~/new")


# -- archives -------------------------------------------------------------------------------------


def archive(path: Path, files: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
            for name, data in files.items():
                made.writestr(name, data)
            for name, target in (links or {}).items():
                member = zipfile.ZipInfo(name)
                member.external_attr = (stat.S_IFLNK | 0o777) << 16
                made.writestr(member, target)
        return path
    mode = "w:gz" if path.suffix in (".gz", ".tgz") else "w"
    with tarfile.open(path, mode) as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
        for name, target in (links or {}).items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            made.addfile(member)
    return path


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz", "set.tgz", "set.zip"])
def test_an_archive_is_unpacked_at_its_place(tmp_path, nodes, capsys, name, copies):
    files = {"train/0.txt": b"zero", "train/1.txt": b"x" * 100_000, "labels": b"0 1"}
    path = archive(tmp_path / name, files)
    one = nodes("node0")
    (place,) = one.have(f"{path}:~/unpacked", copies=copies)
    assert content(place) == {**files, "train": "folder"}
    capsys.readouterr()
    assert one.have(f"{path}:~/unpacked", copies=copies) == [place]
    assert "nothing is sent" in capsys.readouterr().err
    assert one.have(f"{path}:$TMPDIR", copies=copies) == [one.home("node0") / "set"]


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_an_archive_of_a_folder_that_was_sent_brings_no_mark(source, nodes, tmp_path, ending):
    one = nodes("node0")
    (source / "link").unlink()  # a zip file would have a copy
    (place,) = one.have(f"{source}:~/set")
    path = shutil.make_archive(str(tmp_path / "packed"), ending, place)
    (again,) = one.have(f"{path}:~/again")
    assert content(again) == content(source)
    assert one.have(f"{path}:~/again", quiet=True) == [again]


EVIL = {
    "above": ({"../evil": b"x"}, {}),
    "far above": ({"a/../../../evil": b"x"}, {}),
    "a link that leads out": ({"a": b"x"}, {"out": "../.."}),
    "through a link": ({}, {"out": "/tmp"}),
}


@pytest.mark.parametrize("ending", ["tar", "zip"])
@pytest.mark.parametrize("kind", EVIL)
def test_archive_member_outside_its_place_is_refused_and_nothing_unpacked(
    tmp_path, nodes, kind, ending
):
    files, links = EVIL[kind]
    path = archive(tmp_path / f"set.{ending}", {"good": b"x", **files}, links)
    one = nodes("node0")
    error = refusal(one, f"{path}:~/deep/er/set")
    assert error.startswith(f"node0: set.{ending}: ")
    assert any(name in error for name in (*files, *links))
    assert sorted(path.name for path in one.home("node0").rglob("*") if path.is_file()) == []
    assert not [*tmp_path.rglob("evil")]


@pytest.mark.parametrize("name", ["set.tar.gz", "set.zip"])
def test_a_damaged_archive_is_refused_and_nothing_stays(tmp_path, nodes, name):
    path = archive(tmp_path / name, {"a": os.urandom(50_000), "b": b"x"})
    data = bytearray(path.read_bytes())
    data[20_000:20_100] = bytes(100)
    path.write_bytes(data)
    one = nodes("node0")
    assert f"node0: {name}: " in refusal(one, f"{path}:~/set")
    assert not (one.home("node0") / "set").exists()
    assert not work_of(one.home("node0") / "set").exists()


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
    refusal(nodes("node0", through=cut_after(100_000)), f"{source}:~/cut")
    work = work_of(one.home("node0") / "cut")
    found = {(each["path"], each["whole"], each["used"]) for each in left(one)[0]}
    assert found == {(str(place), True, False), (str(work), False, False)}
    with in_use(place / node_data.DATA_MARK):
        used = {each["path"]: each["used"] for each in left(one)[0]}
        assert used == {str(place): True, str(work): False}
        assert left(one, node0=[place, work]) == [{str(place): "a run has begun to use it"}]
        (source / "a.txt").write_text("newer")
        assert f"{place}: a run uses other data there" in refusal(one, f"{source}:~/set")
    assert place.exists() and not work.exists()
    left(one, node0=[place, source])  # only what --send has made
    assert not place.exists() and source.exists()
    assert [each["path"] for each in left(one)[0]] == [str(work_of(place))]


def test_a_place_of_another_host_with_the_same_home_stays_known(source, nodes):
    one = nodes("node0")
    one.have(f"{source}:~/set")
    (own,) = (one.home("node0") / "state/muster/data").iterdir()
    other = own.with_name(f"{socket.gethostname()}-b-{'0' * 16}")
    other.symlink_to("/only/there")
    assert len(left(one)[0]) == 1
    assert own.is_symlink() and other.is_symlink()


def test_a_signal_ends_all_that_sends(source, nodes):
    stuck = ["sh", "-c", "exec sleep 1000", "sh"]
    write(source, {"large": bytes(5_000_000)})
    two = nodes("node0", "node1", through=stuck)
    running: list = []
    real = data_transfer._Transfer.run

    def run(transfer):
        running.append(transfer)
        real(transfer)

    def stop() -> None:
        wait_until(lambda: len(running) == 2 and all(each._process for each in running))
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_transfer._Transfer, "run", run)
        user = threading.Thread(target=stop)
        user.start()
        with pytest.raises(KeyboardInterrupt):
            two.have(f"{source}:~/set")
        user.join()
    assert all(each._process.returncode is not None for each in running)


# -- answers and progress -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", ['{"at": [0]}', '{"at": [-1, 0]}', '{"at": ["a", 0]}', "[]", "{", '{"content": 1}']
)
def test_an_odd_answer_is_the_failure_of_its_node(source, nodes, answer):
    odd = ["sh", "-c", "echo hello; echo 'muster:" + answer + "'; exec cat >&2", "sh"]
    error = refusal(nodes("node0", through=odd), f"{source}:~/set")
    assert "node0: what it says is no answer of Muster's" in error


def test_a_marker_of_another_form_is_no_marker(source, nodes):
    one = nodes("node0")
    (place,) = one.have(f"{source}:~/set")
    for text in ("", "[]", "{}", json.dumps({"version": 1})):
        (place / node_data.DATA_MARK).write_text(text)
        assert one.have(f"{source}:~/set") == [place]  # the content is the same


def test_progress_names_the_slowest_node(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(data_transfer, "running_s", lambda: clock[0])
    say = data_transfer._Printer(quiet=False)
    say.progress({"node0": 0, "node1": 0}, 100_000_000)
    assert capsys.readouterr().err == ""
    clock[0] = 10.0
    say.progress({"node0": 80_000_000, "node1": 20_000_000}, 100_000_000)
    assert capsys.readouterr().err == "20 % of 100.0 MB are on node1, the slowest node\n"
