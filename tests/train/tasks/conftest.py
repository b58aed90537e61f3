import pytest

from tests.train.tasks.text.made import make


@pytest.fixture
def made(tmp_path):
    """A folder of GLUE files per task, a vocabulary and a model's configuration."""
    return make(tmp_path)
