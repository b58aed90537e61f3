"""Command lines of other programs, which ours translate or refuse."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import strategies as st

from muster.errors import UsageError


def refusal(translate: Callable[..., object], *argv: str) -> str:
    """What is said of a command line that is not translated."""
    with pytest.raises(UsageError) as error:
        translate(*argv)
    return str(error.value)


def any_words(flags: Sequence[str], values: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Some of the flags with some of the values, as one word each or as two."""
    pair = st.tuples(st.sampled_from(flags), st.sampled_from(values))
    joined = pair.map(lambda one: ["=".join(one)])
    return st.lists(pair.map(list) | joined, max_size=5).map(
        lambda several: list(itertools.chain.from_iterable(several))
    )
