"""The known name that was meant by a wrong one is found."""

import pytest

from muster.similar_names import closest

NAMES = ["nodes", "nodelist", "batchnorm", "batch-size", "overlap", "lr", "train.py"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("node", "nodes"),
        ("batch", "batch-size"),
        ("Batch-Siz", "batch-size"),
        ("nodse", "nodes"),
        ("tain.py", "train.py"),
        ("LR", "lr"),
        ("no", ""),
        ("verbose", ""),
        ("ntasks", ""),
        ("", ""),
    ],
)
def test_a_whole_word_then_a_beginning_then_what_is_alike(name, meant):
    assert closest(name, NAMES) == meant
