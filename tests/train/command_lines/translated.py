"""Command lines of other programs, which ours translate or refuse."""

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st


def any_words(flags: Sequence[str], values: Sequence[str]) -> st.SearchStrategy[list[str]]:
    """Some of the flags with some of the values, as one word each or as two."""
    pair = st.tuples(st.sampled_from(flags), st.sampled_from(values))
    joined = pair.map(lambda one: ["=".join(one)])
    return st.lists(pair.map(list) | joined, max_size=5).map(
        lambda several: list(itertools.chain.from_iterable(several))
    )
