"""Read README and the pages of docs/: their text and their code fences."""

import re
import shlex
from pathlib import Path

from muster.checkout import CHECKOUT

DOCS = CHECKOUT / "docs"
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.M | re.S)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def fences(page: Path, *languages: str) -> list[str]:
    """Return the contents of the page's code fences in these languages."""
    return [body for _, language, body in FENCE.findall(text_of(page)) if language in languages]


def python_of(page: Path) -> list[str]:
    return fences(page, "python")


def commands_of(page: Path) -> list[list[str]]:
    """Return the command lines of all shell fences, with continued lines joined and no comments."""
    found = []
    for body in fences(page, "bash", "sh", "console"):
        for line in body.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"\w+=\S*", words[0]):
                words.pop(0)  # VARIABLE=value in front of a command
            if words:
                found.append(words)
    return found


ONE_LINE, ACCELERATE, TRAINER, LIGHTNING, WHOLE_LOOP, *_METRICS = python_of(DOCS / "library.md")
