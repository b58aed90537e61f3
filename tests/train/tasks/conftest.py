"""Data of tasks on text, and a stand-in for the Hub."""

import pytest

from tests.train.tasks.text.made import make


@pytest.fixture
def glue(tmp_path):
    """A folder of GLUE files per task, a vocabulary and a model's configuration."""
    return make(tmp_path)


@pytest.fixture
def hub(monkeypatch):
    """Replace the Hub: return the same rows for each data set, and list what was asked for."""

    def give(rows, **features):
        asked = []

        def load_dataset(*name, **how):
            asked.append((*name, *how.values()))
            return datasets.Dataset.from_dict(rows, datasets.Features(features) or None)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    import datasets

    return give
