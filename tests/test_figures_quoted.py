"""Figures quoted in README and docs/ match docs/speed.md, which has the command for each."""

import re
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests.pages import FENCE

README = CHECKOUT / "README.md"
DOCS = CHECKOUT / "docs"
SPEED = DOCS / "speed.md"
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")  # and link targets
# of software, after its name
VERSIONS = re.compile(r"(?:Python|Slurm|torch)(?:,? (?:and )?\d+\.\d+(?:\.\d+)?)+")
# such as 0.43, 2,448, or the 39 of 39 %
FIGURE = re.compile(r"(?<![\d.e-])(\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+(?= %))(?![\d.]*\d)")


def figures(text: str) -> set[str]:
    """Return the measured numbers in a text: decimals, thousands and percentages, outside code."""
    plain = VERSIONS.sub("", CODE.sub("", FENCE.sub("", text)))
    losses = re.sub(r"\b\d+\.\d{6}\b", "", plain)  # tests/test_modes_agree.py checks these
    return set(FIGURE.findall(losses))


SECTIONS = [figures(one) for one in SPEED.read_text(encoding="utf-8").split("\n## ")]


def quoting(page: Path) -> list[str]:
    """Return README's lines with figures, or another page's paragraphs that link to speed.md."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    if page == README:
        return [line for line in text.splitlines() if figures(line)]
    paragraphs = re.split(r"\n\s*\n|\n(?=- )", text)
    return [one for one in paragraphs if re.search(r"\]\((?:\.\./)?speed\.md", one)]


PAGES = [README, *sorted(set(DOCS.glob("*.md")) - {SPEED})]
QUOTES = [
    pytest.param(text, id=f"{page.name}: {text.strip()[:40]}")
    for page in PAGES
    for text in quoting(page)
]


@pytest.mark.parametrize("text", QUOTES)
def test_figures_quoted_together_stand_together_on_the_page_of_figures(text):
    found = figures(text)
    assert any(found <= section for section in SECTIONS), found


def test_readme_quotes_figures_and_a_wrong_one_would_be_seen():
    readme = README.read_text(encoding="utf-8")
    assert {"1.156", "0.647", "0.35", "39", "20"} <= figures(readme)
    found = figures("`0.9` takes 0.123 s, Python 3.11, 1e-3, 12 %, 2,448")
    assert found == {"0.123", "12", "2,448"}
