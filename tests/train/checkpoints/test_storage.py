"""A checkpoint is whole or it is not there, whatever happened while it was written."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import DEFAULT, Mock

import pytest
import torch

from tests.commands import begin, call, ended
from train.checkpoints import storage
from train.checkpoints.storage import Damaged

TENSORS = {"model": {"weight": torch.arange(6.0)}, "optimizer": {"weight/step": torch.tensor(3.0)}}
# Writes checkpoints without end; prints the step of each that is finished.
ENDLESS = """
import itertools, sys, torch
from pathlib import Path
from train.checkpoints import storage
for step in itertools.count(1):
    tensors = {"model": {"weight": torch.full((20_000,), float(step))}}
    storage.write(Path(sys.argv[1]), step, tensors, {"number": step})
    print(step, flush=True)
    storage.prune(Path(sys.argv[1]), 2, None)
"""
FULL = """
import sys, torch
from pathlib import Path
from train.checkpoints import storage
from train.checkpoints.writer import Writer
notes = []
writer = Writer(Path(sys.argv[1]), keep_last=9, rank=0, note=notes.append)
for step in range(1, 9):
    writer.start(step, {"model": {"weight": torch.zeros(15_000)}}, {}, (0, 0), stall_s=0.0)
    writer.wait()
whole = [one.step for one in storage.found(Path(sys.argv[1])) if storage.read(one)]
print(whole, [note.error for note in notes if note.error][0])
"""


def write(folder: Path, *steps: int) -> None:
    for step in steps:
        storage.write(folder, step, TENSORS, {"number": step})


def test_what_is_written_last_is_read(tmp_path):
    folder = tmp_path / "new" / "folder"
    write(folder, 7)
    storage.write(folder, 7, TENSORS, {"number": "new"})  # the one that is there gives way
    (found,) = storage.found(folder)
    tensors, state = storage.read(found)
    assert found.step == 7 and state == {"number": "new", "step": 7}
    assert torch.equal(tensors["model"]["weight"], TENSORS["model"]["weight"])
    assert torch.equal(tensors["optimizer"]["weight/step"], torch.tensor(3.0))
    assert list(folder.iterdir()) == [found.path]


def test_the_newest_come_first_and_old_ones_go_but_for_the_best(tmp_path):
    write(tmp_path, 2, 10, 9, 1)
    assert [one.step for one in storage.found(tmp_path)] == [10, 9, 2, 1]
    storage.prune(tmp_path, 2, best=1)
    assert [one.step for one in storage.found(tmp_path)] == [10, 9, 1]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.pt", "optimizer.pt", "state.json", storage.MANIFEST])
@pytest.mark.parametrize("harm", [flip, lambda path: os.truncate(path, 9), Path.unlink])
def test_any_damage_is_noticed(tmp_path, name, harm):
    write(tmp_path, 5)
    (found,) = storage.found(tmp_path)
    harm(found.path / name)
    with pytest.raises(Damaged, match=name):
        storage.read(found)
    # without a manifest it is no checkpoint
    assert len(storage.found(tmp_path)) == (found.path / storage.MANIFEST).exists()


@pytest.mark.parametrize("version", [1, 99])  # 1 had safetensors
def test_a_form_of_another_version_is_refused(tmp_path, version):
    write(tmp_path, 5)
    (found,) = storage.found(tmp_path)
    manifest = found.path / storage.MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": version}))
    with pytest.raises(Damaged, match=f"has version {version} of the form"):
        storage.read(found)


class Code:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_what_would_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = storage.write(tmp_path, 5, {"model": {"weight": Code()}}, {})
    with pytest.raises(Damaged, match=r"model\.pt holds more than values"):
        storage.read(found)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_killed_while_writing_the_last_finished_one_is_there(tmp_path, seed):
    """Wherever the kill falls: what `write` returned is on the disk, and all that is found is."""
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        for _ in range(3 * seed):
            message = process.stdout.readline()
        time.sleep(0.0007 * seed)
        os.kill(process.pid, signal.SIGKILL)
        rest = process.stdout.read().split()
    finished = int(rest[-1] if rest else message)
    found = storage.found(tmp_path)
    assert found[0].step >= finished
    for one in found:
        tensors, state = storage.read(one)
        assert set(tensors["model"]["weight"].tolist()) == {float(one.step)}
        assert state["number"] == one.step
    write(tmp_path, finished + 10)
    storage.prune(tmp_path, 1, None)
    assert [path.name for path in tmp_path.iterdir()] == [f"step_{finished + 10:08d}"]


@pytest.mark.needs("root", "namespaces")  # to make a small disk
def test_a_full_disk_leaves_what_was_there_and_says_so(tmp_path):
    script = 'mount -t tmpfs -o size=256k none "$1" && exec "$2" -c "$3" "$1"'
    small = ["unshare", "--mount", "sh", "-c", script, "sh"]
    done = call(*small, tmp_path, sys.executable, FULL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[3, 2, 1] step 4: no checkpoint in "), done.stdout
    assert "the disk is full; the last good one is that of step 3" in done.stdout
    assert done.stderr.startswith("warning: step 4: no checkpoint in ")


def test_a_file_system_that_fails_now_and_then_is_asked_again(tmp_path, monkeypatch):
    fails = OSError(5, "Input/output error")
    flaky = Mock(wraps=storage._write, side_effect=[fails, fails, DEFAULT])
    monkeypatch.setattr(storage, "_write", flaky)
    monkeypatch.setattr(storage, "PAUSE_S", 0.0)
    write(tmp_path, 1)
    assert flaky.call_count == 3 and [one.step for one in storage.found(tmp_path)] == [1]


def test_what_a_process_that_lives_is_writing_is_not_taken_for_unfinished(tmp_path, monkeypatch):
    """Of any process of this host, without a look at /proc, which macOS has not."""
    with ended(begin("sleep", "10000")) as child:
        folder = tmp_path / f"step_00000001.{socket.gethostname()}.{child.pid}{storage.UNFINISHED}"
        folder.mkdir()
        monkeypatch.setattr(Path, "exists", lambda _: False)
        assert list(storage._unfinished(tmp_path)) == []
    assert list(storage._unfinished(tmp_path)) == [folder]
