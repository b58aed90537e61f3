"""A cache is read only where it is whole, and builders do not disturb each other."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from train.tasks.sources import cache

TENSORS = {"input_ids": torch.arange(999, dtype=torch.int32), "offsets": torch.tensor([0, 999])}


@pytest.fixture
def folder(tmp_path):
    cache.write(tmp_path / "rte-1", {"train": TENSORS, "dev": TENSORS}, side="right")
    return tmp_path / "rte-1"


def test_what_was_written_is_read_back(folder):
    assert cache.is_whole(folder)
    assert cache.facts(folder)["side"] == "right"
    found = cache.read(folder, "dev")
    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[key], TENSORS[key]) for key in TENSORS)


def test_nothing_else_is_left_next_to_it(folder):
    assert [path.name for path in folder.parent.iterdir()] == ["rte-1"]
    names = {"manifest.json", "train.safetensors", "dev.safetensors"}
    assert {path.name for path in folder.iterdir()} == names


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["train.safetensors", "manifest.json"])
@pytest.mark.parametrize("harm", [cut, Path.unlink, lambda path: path.write_text("[]")])
def test_damage_is_noticed_and_mended(folder, name, harm):
    harm(folder / name)
    if name == "manifest.json" and harm is cut:
        (folder / name).write_text((folder / name).read_text()[:-2])  # beyond the last newline
    assert not cache.is_whole(folder)
    cache.write(folder, {"train": TENSORS, "dev": TENSORS})
    assert cache.is_whole(folder)
    assert [path.name for path in folder.parent.iterdir()] == ["rte-1"]
    assert not (folder / "damaged").exists()


def test_many_builders_at_once_make_one_whole_cache(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(cache.write, tmp_path / "one", {"train": TENSORS}) for _ in range(24)]
    assert all(future.result() is None for future in done)
    assert cache.is_whole(tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


def test_the_fingerprint_keeps_parts_apart():
    assert cache.fingerprint(["ab", "c"]) != cache.fingerprint(["a", "bc"])
    assert cache.fingerprint(["ab"]) == cache.fingerprint([b"ab"])
