"""A checkpoint is complete or absent, whatever happened while it was written."""

import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch
from hypothesis import strategies as st

from tests.commands import begin, call, ended
from tests.fuzzing import fuzzed
from train.checkpoints import storage
from train.checkpoints.storage import Damaged, SavedState

TENSORS = {"objects.pt": {"weight": torch.arange(6.0)}, "sync.pt": {"step": torch.tensor(3.0)}}
# Writes checkpoints endlessly; prints the step of each finished checkpoint.
ENDLESS = """
import itertools, sys, torch
from pathlib import Path
from train.checkpoints import storage
for step in itertools.count(1):
    tensors = {"objects.pt": {"weight": torch.full((20_000,), float(step))}, "sync.pt": {}}
    saved = storage.SavedState(step=step, world_size=1)
    storage.write(Path(sys.argv[1]), tensors, saved)
    print(step, flush=True)
    storage.prune(Path(sys.argv[1]), 2, None)
"""
FULL = """
import sys, torch
from pathlib import Path
from train.checkpoints import storage
from train.checkpoints.storage import SavedState
from train.checkpoints.writer import Writer
notes = []
writer = Writer(Path(sys.argv[1]), keep_last=9, rank=0, note=notes.append)
for step in range(1, 9):
    saved = SavedState(step=step, world_size=1)
    writer.start({"objects.pt": {"w": torch.zeros(15_000)}, "sync.pt": {}}, saved, stall_s=0.0)
    writer.wait()
checkpoints = storage.list_checkpoints(Path(sys.argv[1]))
steps = [storage.read_verified(checkpoint.path).saved.step for checkpoint in checkpoints]
print(steps, [note.error for note in notes if note.error][0])
"""


def write(folder: Path, *steps: int) -> None:
    for step in steps:
        storage.write(folder, TENSORS, SavedState(step=step, world_size=1))


def test_last_write_of_a_step_is_read(tmp_path):
    folder = tmp_path / "new" / "folder"
    write(folder, 7)
    new = SavedState(step=7, world_size=1, run_id="new")
    storage.write(folder, TENSORS, new)  # the existing checkpoint is replaced
    (checkpoint,) = storage.list_checkpoints(folder)
    _, tensors, saved, _ = storage.read_verified(checkpoint.path)
    assert checkpoint.step == 7 and saved == new
    assert torch.equal(tensors["objects.pt"]["weight"], TENSORS["objects.pt"]["weight"])
    assert torch.equal(tensors["sync.pt"]["step"], torch.tensor(3.0))
    assert list(folder.iterdir()) == [checkpoint.path]


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    write(tmp_path, 2, 10, 9, 1)
    assert [checkpoint.step for checkpoint in storage.list_checkpoints(tmp_path)] == [10, 9, 2, 1]
    storage.prune(tmp_path, 2, best=1)
    assert [checkpoint.step for checkpoint in storage.list_checkpoints(tmp_path)] == [10, 9, 1]


def test_later_checkpoints_are_set_aside_and_can_be_resumed(tmp_path):
    for after, steps in ((4, [8, 12]), (4, [8]), (-1, [4])):
        write(tmp_path, 4, *steps)
        assert storage.set_aside(tmp_path, after) == steps
    aside = tmp_path / storage.SET_ASIDE
    assert sorted(path.name for path in aside.iterdir()) == [
        "step_00000004", "step_00000008", "step_00000008.2", "step_00000012",
    ]  # fmt: skip
    assert storage.list_checkpoints(tmp_path) == []
    for place, step in ((aside, 12), (aside / "step_00000008.2", 8)):
        intact, notes = storage.newest_intact(place)
        assert (intact.saved.step, notes) == (step, [])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["objects.pt", "sync.pt", "state.json", storage.MANIFEST])
def test_flipped_bit_is_detected(tmp_path, name):
    write(tmp_path, 5)
    (checkpoint,) = storage.list_checkpoints(tmp_path)
    flip(checkpoint.path / name)
    with pytest.raises(Damaged, match=name):
        storage.read_verified(checkpoint.path)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (1, "format 1, .* format 4"),  # safetensors
        (3, "format 3"),
        (99, "format 99"),
        (2, "step_00000005 .* 0\\.2\\.0"),
    ],
)
def test_checkpoint_of_another_format_version_is_refused(tmp_path, version, message):
    write(tmp_path, 5)
    (checkpoint,) = storage.list_checkpoints(tmp_path)
    manifest = checkpoint.path / storage.MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": version}))
    with pytest.raises(Damaged, match=message):
        storage.read_verified(checkpoint.path)


class Code:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_pickle_that_runs_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {**TENSORS, "objects.pt": {"weight": Code()}}
    checkpoint = storage.write(tmp_path, files, SavedState(step=5, world_size=1))
    with pytest.raises(Damaged, match=r"objects\.pt "):
        storage.read_verified(checkpoint)
    assert not (tmp_path / "made").exists()


def sign(path: Path, **changed: object) -> None:
    """Write the current checksums of all files, and other values, to the manifest."""
    sums = {one.name: storage.sha256(one) for one in path.iterdir() if one.suffix != ".partial"}
    sums.pop(storage.MANIFEST)
    manifest = {"version": storage.VERSION, "sha256": sums, **changed}
    (path / storage.MANIFEST).write_text(json.dumps(manifest))


def fallback(folder: Path) -> tuple[int, list[str]]:
    """Return the step from which a run resumes, and the notes."""
    whole, notes = storage.newest_intact(folder)
    assert whole is not None
    return whole.saved.step, notes


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("objects.pt", b"", "is damaged"),
        ("objects.pt", b"no archive at all", "torch"),
        ("objects.pt", pickle.dumps({"weight": [1.0]}), "torch"),
        ("state.json", b"", "Expecting value"),
        ("state.json", b"[1]", "JSON object"),
        ("state.json", b"{}", "fields"),
        ("state.json", b"[" * 100_000, "recursion"),
    ],
)
def test_unreadable_file_with_right_checksum_is_skipped(tmp_path, name, content, reason):
    write(tmp_path, 1, 2)
    newest = tmp_path / "step_00000002"
    (newest / name).write_bytes(content)
    sign(newest)
    step, (note,) = fallback(tmp_path)
    assert step == 1
    assert reason in note


@pytest.mark.parametrize(
    "changed",
    [
        {"sha256": []},
        {"sha256": {}},
        {"sha256": {"state.json": 3}},
        {"sha256": {"state.json": "", "../../objects.pt": ""}},
        {"version": None},
        {"version": [[]]},
    ],
)
def test_odd_manifest_is_skipped(tmp_path, changed):
    write(tmp_path, 1, 2)
    sign(tmp_path / "step_00000002", **changed)
    step, notes = fallback(tmp_path)
    assert (step, len(notes)) == (1, 1)


def test_pipe_in_place_of_a_file_is_skipped(tmp_path):
    write(tmp_path, 1, 2)
    model = tmp_path / "step_00000002" / "objects.pt"
    model.unlink()
    os.mkfifo(model)
    step, (note,) = fallback(tmp_path)
    assert step == 1 and note.startswith(f"{model}: ") and "no such file" in note


def test_file_system_without_mmap_is_read(tmp_path, monkeypatch):
    write(tmp_path, 1)
    load = torch.load

    def unmapped(*given, mmap=False, **options):
        if mmap:
            raise RuntimeError(
                "unable to mmap 96 bytes from file <objects.pt>: No such device (19)"
            )
        return load(*given, **options)

    monkeypatch.setattr(torch, "load", unmapped)
    assert fallback(tmp_path) == (1, [])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=12,
)
KEYS = ("version", "sha256", "step", "world_size", "best", "best_step", "by_rank", "run_id")
ODD_STATES = st.dictionaries(st.sampled_from(KEYS), JSON).map(json.dumps).map(str.encode)


def changed_bytes(draw, data: bytes) -> bytes:
    """Change some bytes of a file, and perhaps cut off its end."""
    new = bytearray(data)
    for _ in range(draw(st.integers(1, 5))):
        new[draw(st.integers(0, len(new) - 1))] = draw(st.integers(0, 255))
    return bytes(new[: draw(st.integers(0, len(new)))] if draw(st.booleans()) else new)


def saved_by_torch(value: object, folder: Path) -> bytes:
    torch.save(value, folder / "value.pt")
    return (folder / "value.pt").read_bytes()


PARTS = {
    "objects.pt": {"weight": torch.arange(6.0)},
    "sync.pt": {
        "0/error": torch.tensor([3.0]),
        "all/generators/state": torch.zeros(4, dtype=torch.uint8),
    },
}


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    place = tmp_path_factory.mktemp("two")
    for step in (1, 2):
        storage.write(place, PARTS, SavedState(step=step, world_size=1))
    return place


@fuzzed(st.data(), examples=30)
def test_checkpoint_of_random_content_is_read_or_skipped(two_checkpoints, data):
    """It runs no code, and one that is skipped causes a single note."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "checkpoints")
        newest = shutil.copytree(two_checkpoints, place) / "step_00000002"
        name = data.draw(st.sampled_from(sorted(path.name for path in newest.iterdir())))
        made = Path(folder, "made")
        values = [Runs(made), {"weight": Runs(made)}, *PARTS.values()]
        kinds = {
            "changed": lambda: changed_bytes(data.draw, (newest / name).read_bytes()),
            "json": lambda: data.draw(ODD_STATES),
            "other": lambda: saved_by_torch(
                data.draw(JSON | st.sampled_from(values)), place.parent
            ),
            "pickle": lambda: pickle.dumps(data.draw(JSON | st.sampled_from(values[:3]))),
            "bytes": lambda: data.draw(st.binary(max_size=50)),
        }
        (newest / name).write_bytes(kinds[data.draw(st.sampled_from(sorted(kinds)))]())
        if name != storage.MANIFEST and data.draw(st.booleans()):
            sign(newest)
        whole, notes = storage.newest_intact(place)
        assert not made.exists()
        assert whole is not None
        assert len(notes) == (whole.path != newest)
        json.dumps([notes, asdict(whole.saved), whole.sums])
        print(*notes)


class Runs:
    """Unpickling it makes a folder."""

    def __init__(self, made: Path) -> None:
        self._made = str(made)

    def __reduce__(self):
        return os.mkdir, (self._made,)


def test_kill_while_writing_leaves_the_last_finished_checkpoint(tmp_path):
    """Whenever the kill comes, finished writes are on the disk, and what is found is intact."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        for _ in range(3):
            message = process.stdout.readline()
        time.sleep(0.0007)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
    finished = int(rest[-1] if rest else message)
    checkpoints = storage.list_checkpoints(tmp_path)
    assert checkpoints[0].step >= finished
    for checkpoint in checkpoints:
        intact = storage.read_verified(checkpoint.path)
        assert set(intact.files["objects.pt"]["weight"].tolist()) == {float(checkpoint.step)}
        assert intact.saved.step == checkpoint.step
    write(tmp_path, finished + 10)
    storage.prune(tmp_path, 1, None)
    assert [path.name for path in tmp_path.iterdir()] == [f"step_{finished + 10:08d}"]


@pytest.mark.needs("root", "namespaces")  # to make a small disk
def test_full_disk_keeps_earlier_checkpoints_and_is_reported(tmp_path):
    script = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'
    small = ["unshare", "--mount", "sh", "-c", script, "sh"]
    done = call(*small, tmp_path, sys.executable, FULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[3, 2, 1] step 4: the checkpoint could not be written to "), (
        done.stdout
    )
    assert "the disk is full; " in done.stdout and " step 3" in done.stdout
    assert done.stderr.startswith("warning: step 4: the checkpoint could not be written to ")


def test_write_is_retried_after_a_passing_error(tmp_path, monkeypatch):
    fails = OSError(5, "Input/output error")
    flaky = Mock(wraps=storage._write, side_effect=[fails, fails, DEFAULT])
    monkeypatch.setattr(storage, "_write", flaky)
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)
    write(tmp_path, 1)
    assert flaky.call_count == 3 and [
        checkpoint.step for checkpoint in storage.list_checkpoints(tmp_path)
    ] == [1]


def test_partial_folder_of_a_living_process_is_not_removed(tmp_path, monkeypatch):
    """This holds for any process of this host, and without /proc, which macOS does not have."""
    with ended(begin("sleep", "10000")) as child:
        folder = tmp_path / f"step_00000001.{socket.gethostname()}.{child.pid}{storage.UNFINISHED}"
        folder.mkdir()
        monkeypatch.setattr(Path, "exists", lambda _: False)
        assert list(storage._unfinished(tmp_path)) == []
    assert list(storage._unfinished(tmp_path)) == [folder]
