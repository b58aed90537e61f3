"""Command lines of other programs, which our programs translate or refuse."""

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st


def any_words(flags: Sequence[str], values: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Draw some of the flags with some of the values, each pair as one word or as two."""
    pair = st.tuples(st.sampled_from(flags), st.sampled_from(values))
    joined = pair.map(lambda one: ["=".join(one)])
    return st.lists(pair.map(list) | joined, max_size=5).map(
        lambda several: list(itertools.chain.from_iterable(several))
    )
