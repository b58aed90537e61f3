"""Sets of the Hub are unpacked into the cache once, from whatever images they hold."""

import numpy
import pytest
import torch
from PIL import Image

from muster.errors import UsageError
from train.tasks.sources import hub
from train.tasks.vision.image_hub import HubSet

COLOURS = HubSet("someone/colours", column="img", mode="RGB")
GREYS = HubSet("someone/greys", column="image", mode="L")


@pytest.fixture
def loaded(monkeypatch):
    """Stands in for the download: five images a split, as `datasets` keeps them."""
    import datasets

    calls = []

    def load_dataset(name, *, split):
        calls.append((name, split))
        shape, column = ((6, 4, 3), "img") if name == COLOURS.name else ((6, 4), "image")
        rng = numpy.random.default_rng(len(split))
        arrays = rng.integers(256, size=(5, *shape)).astype(numpy.uint8)
        columns = {
            column: [Image.fromarray(array) for array in arrays],
            "label": [4, 3, 2, 1, 0],
        }
        kinds = {column: datasets.Image(), "label": datasets.ClassLabel(num_classes=5)}
        return datasets.Dataset.from_dict(columns, datasets.Features(kinds))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return calls


@pytest.mark.parametrize(("source", "channels"), [(COLOURS, 3), (GREYS, 1)])
def test_a_set_is_unpacked_once(tmp_path, loaded, source, channels):
    assert not source.is_prepared(tmp_path)
    source.prepare(tmp_path)
    assert source.is_prepared(tmp_path)
    source.prepare(tmp_path)
    assert loaded == [(source.name, "train"), (source.name, "test")]
    sets = source.read(tmp_path)
    shape = (6, 4, 3) if channels == 3 else (6, 4)
    made = numpy.random.default_rng(len("train")).integers(256, size=(5, *shape))
    wanted = torch.from_numpy(made).to(torch.uint8).view(5, 6, 4, channels).movedim(-1, 1)
    assert torch.equal(sets["train"].pixels, wanted)
    assert sets["test"].labels.tolist() == [4, 3, 2, 1, 0]


def test_without_the_hub_one_is_told_to_give_files(tmp_path, monkeypatch):
    import datasets

    def load_dataset(*_, **__):
        raise ConnectionError("Couldn't reach 'someone/greys' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(UsageError, match=r"someone/greys: .*give its files with --data-dir"):
        GREYS.prepare(tmp_path)
    assert hub.is_local("/some/path")
