"""A cache is read only if it is complete, and concurrent writers do not disturb each other."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from muster.errors import UsageError
from train.tasks.sources import cache

TENSORS = {"input_ids": torch.arange(999, dtype=torch.int32), "offsets": torch.tensor([0, 999])}
CONTENT = {"sets": {"train": TENSORS}, "side": "right"}


@pytest.fixture
def path(tmp_path):
    path = cache.path_for(tmp_path, "rte", ["data"])
    cache.write(path, CONTENT)
    return path


def test_written_cache_is_read_back_and_leaves_no_other_file(path):
    assert cache.is_whole(path)
    found = cache.read(path)
    assert (found.keys(), found["side"]) == (CONTENT.keys(), "right")
    read = found["sets"]["train"]
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[key], TENSORS[key]) for key in TENSORS)
    assert list(path.parent.iterdir()) == [path]
    assert path.stat().st_mode & 0o444 == 0o444


@pytest.mark.parametrize(
    "harm",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_text("[]"),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        Path.unlink,
    ],
)
def test_damaged_cache_is_noticed_and_written_again(path, harm):
    harm(path)
    assert not cache.is_whole(path)
    cache.write(path, CONTENT)
    assert cache.is_whole(path) and list(path.parent.iterdir()) == [path]


def test_cache_written_by_many_at_once_is_whole(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(cache.write, tmp_path / "one", CONTENT) for _ in range(24)]
    assert all(future.result() is None for future in done)
    assert cache.is_whole(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_unchanged_data_file_is_hashed_once(tmp_path, monkeypatch):
    path, reads = tmp_path / "train.tsv", []
    path.write_text("first")
    digest = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, name: reads.append(1) or digest(file, name)
    )
    monkeypatch.setattr(cache, "SETTLED_S", 3600.0)
    cache.sum_of(tmp_path, path)
    assert not (tmp_path / "sums").exists()  # it has just been written
    monkeypatch.setattr(cache, "SETTLED_S", -60.0)
    first = [cache.sum_of(tmp_path, path) for _ in range(3)]
    assert first == [hashlib.sha256(b"first").digest()] * 3 and len(reads) == 2
    status = path.stat()
    path.write_text("other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # as rsync -t may
    assert cache.sum_of(tmp_path, path) == hashlib.sha256(b"other").digest()
    for stored in (tmp_path / "sums").iterdir():
        stored.write_text("cut")
    assert cache.sum_of(tmp_path, path) == hashlib.sha256(b"other").digest()


def test_cache_fingerprint_separates_its_parts():
    assert cache.fingerprint(["ab", "c"]) != cache.fingerprint(["a", "bc"])


def test_cache_is_in_xdg_cache_home_or_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.root(None) == tmp_path / "muster"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache.root(None) == Path.home() / ".cache" / "muster"


@pytest.mark.usefixtures("no_home")
def test_cache_without_home_names_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    with pytest.raises(UsageError, match=r"HOME is not set.*XDG_CACHE_HOME"):
        cache.root(None)
