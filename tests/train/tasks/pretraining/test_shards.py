"""HDF5 shards in NVIDIA's layout are read lazily, across files and processes."""

import os
import pickle

import h5py
import numpy
import pytest
from torch.utils.data import DataLoader

from muster.errors import UsageError
from tests.train.tasks.pretraining.made import WIDTH, write_shard
from train.tasks.pretraining.shards import Shards


@pytest.fixture
def two(tmp_path):
    return [write_shard(tmp_path / "0.h5", 3), write_shard(tmp_path / "1.hdf5", 5, start=3)]


def test_shards_give_their_rows_in_order(two):
    shards = Shards(two, 100)
    assert len(shards) == 8 and shards.width == WIDTH
    assert [shards[at].tokens[0] for at in (7, 0, 2, 3)] == [17, 10, 12, 13]
    assert shards[1] == ([11] * 7, [0, 0, 0, 1, 1, 1, 1], [1, 4], [7, 8], 1)
    assert pickle.loads(pickle.dumps(shards))[1] == shards[1]  # without its open files


def test_full_row_of_masked_positions_is_read_whole(tmp_path):
    full = numpy.array([[1, 4, 5]] * 2)
    path = write_shard(tmp_path / "0.h5", 2, masked_lm_positions=full, masked_lm_ids=full + 20)
    assert Shards([path], 100)[1].targets == [21, 24, 25]


def test_loader_processes_open_their_own_shard_files(two):
    shards = Shards(two, 100)
    assert shards[0].tokens[0] == 10  # opened here, before the fork
    loader = DataLoader(shards, batch_size=2, num_workers=2, collate_fn=list)
    found = [sample.tokens[0] for batch in loader for sample in batch]
    assert found == list(range(10, 18))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if shards._opened(0) and (os.getpid(), 0) in shards._open else 1)
    assert os.waitpid(pid, 0)[1] == 0


def test_file_that_is_no_shard_is_refused(tmp_path):
    (tmp_path / "text.h5").write_text("hello")
    lacks = write_shard(tmp_path / "0.h5", 3, segment_ids=None)
    short = write_shard(tmp_path / "1.h5", 3, next_sentence_labels=numpy.zeros(2))
    for path, message in (
        (tmp_path / "text.h5", r"text\.h5: not an HDF5 file"),
        (lacks, r"0\.h5 has no segment_ids; it has input_ids, input_mask"),
        (short, r"1\.h5: the shapes of its datasets"),
    ):
        with pytest.raises(UsageError, match=message):
            Shards([path], 100)


@pytest.mark.parametrize(
    ("name", "kind"), [("input_ids", "f4"), ("next_sentence_labels", "f8"), ("input_mask", "S1")]
)
def test_shard_column_of_floats_or_bytes_is_refused_by_name(tmp_path, name, kind):
    path = write_shard(tmp_path / "0.h5", 3)
    with h5py.File(path, "a") as file:
        values = file[name][:].astype(kind)
        del file[name]
        file[name] = values
    with pytest.raises(UsageError, match=rf"0\.h5: {name} .* whole numbers"):
        Shards([path], 100)


def test_shard_with_group_or_empty_dataset_is_refused(tmp_path):
    path, empty = write_shard(tmp_path / "0.h5", 3), write_shard(tmp_path / "1.h5", 3)
    with h5py.File(path, "a") as file:
        del file["segment_ids"]
        file.create_group("segment_ids")
    with h5py.File(empty, "a") as file:
        del file["input_ids"]
        file.create_dataset("input_ids", data=h5py.Empty("i4"))
    with pytest.raises(UsageError, match=r"0\.h5: segment_ids is a group, not a dataset"):
        Shards([path], 100)
    with pytest.raises(UsageError, match=r"1\.h5: the shapes of its datasets"):
        Shards([empty], 100)


def test_shard_without_rows_is_refused_as_empty(tmp_path):
    path = write_shard(tmp_path / "0.h5", 3)
    with h5py.File(path, "a") as file:
        for name, values in [(name, dataset[:0]) for name, dataset in file.items()]:
            del file[name]
            file[name] = values
    with pytest.raises(UsageError, match=r"0\.h5 is empty: its datasets have no rows"):
        Shards([path], 100)


@pytest.mark.parametrize(
    ("name", "row", "message"),
    [
        ("input_ids", [-1] + [3] * 11, "input_ids must not be negative, got -1"),
        ("masked_lm_ids", [7, -100, 0], "masked_lm_ids must not be negative, got -100"),
        ("masked_lm_positions", [1, -4, 0], "masked_lm_positions must not be negative, got -4"),
        ("segment_ids", [0, 2] + [0] * 10, "segment_ids must be 0 or 1, got 2"),
        ("next_sentence_labels", 2, "next_sentence_labels must be 0 or 1, got 2"),
        ("next_sentence_labels", -1, "next_sentence_labels must be 0 or 1, got -1"),
        ("input_mask", [1, 1, 0, 1] + [0] * 8, "input_mask must be ones followed by zeros"),
        ("input_mask", [2, 1] + [0] * 10, "input_mask must be ones followed by zeros"),
    ],
)
def test_impossible_shard_value_is_refused_by_row(tmp_path, name, row, message):
    path = write_shard(tmp_path / "0.h5", 3)
    with h5py.File(path, "a") as file:
        file[name][1] = row
    shards = Shards([path], 100)
    assert shards[0].tokens and shards[2].tokens
    with pytest.raises(UsageError) as refusal:
        shards[1]
    assert str(refusal.value) == f"{path}: row 1: {message}"


def test_shard_mask_of_huge_values_is_refused_without_memory(tmp_path):
    path = write_shard(tmp_path / "0.h5", 3)
    with h5py.File(path, "a") as file:
        huge = file["input_mask"][:].astype("i8") * 2**60
        del file["input_mask"]
        file["input_mask"] = huge
    with pytest.raises(UsageError, match="row 1: input_mask must be ones followed by zeros"):
        Shards([path], 100)[1]


def test_damaged_shard_row_is_named(tmp_path):
    path = write_shard(tmp_path / "0.h5", 3)
    with h5py.File(path) as file:
        chunk = file["input_ids"].id.get_chunk_info(0)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + chunk.size] = bytes(chunk.size)
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"0\.h5: row 1 cannot be read \(.*\)"):
        Shards([path], 100)[1]


def test_shard_row_that_does_not_fit_the_model_is_named(tmp_path, two):
    with pytest.raises(UsageError, match=r"1\.hdf5: row 4 has token 17, .* 17 tokens"):
        Shards(two, 17)[7]
    path = write_shard(tmp_path / "2.h5", 3, masked_lm_positions=numpy.array([[1, 9, 0]] * 3))
    with pytest.raises(UsageError, match=r"2\.h5: row 0 has a masked position after its last"):
        Shards([path], 100)[0]
