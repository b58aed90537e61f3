"""Values that people, programs and accidents may write for settings."""

from typing import Any

from hypothesis import strategies as st

WORDS = ["", "null", "~", "~nobody/x", "yes", "1", "-1", "0", "1e3", "nan", "inf", "1e999", "2:4"]
WORDS += ["9" * 5000, "1,2", "a\0b", "a\nb", "../x", "/dev/null", "x" * 5000, "\u0661", "\ud7ff"]
WORDS += ["10.0.0.0/8", "20000:20100", "KEY=VALUE", "{cwd}", "{0}", "%s", "'", "2020-13-45", "auto"]
WORDS += ["1:2:3", "never", "5min", "own:min", "gpu", "\x1b[2J", "\u2028", "../../etc/passwd"]
SCALARS = st.one_of(
    st.sampled_from(WORDS), st.text(max_size=8), st.booleans(), st.integers(), st.floats()
)
VALUES: st.SearchStrategy[Any] = SCALARS | st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


def settings(names: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw values for some of these names and for other names."""
    return st.dictionaries(st.sampled_from(names) | st.text(max_size=6), VALUES, max_size=4)


def written(parts: list[str]) -> st.SearchStrategy[str]:
    """Draw a file's text: some of these parts in any order, mixed with other text."""
    return st.lists(st.sampled_from(parts) | st.text(max_size=3), max_size=12).map("".join)
