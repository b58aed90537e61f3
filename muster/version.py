"""What `muster --version` prints: the version, the commit of a checkout, and the Python."""

import platform
import sys
from pathlib import Path

import muster
from muster import git
from muster.errors import UsageError


def version_text(checkout: Path) -> str:
    """`muster 0.2.0 (/home/me/muster, commit 1a2b3c4d), Python 3.12.1 (/usr/bin/python3)`."""
    commit = _commit(checkout)
    place = f"{checkout}, commit {commit}" if commit else str(checkout)
    python = f"Python {platform.python_version()} ({sys.executable})"
    return f"muster {muster.__version__} ({place}), {python}"


def _commit(checkout: Path) -> str:
    """The commit, with `-dirty` where a file differs; "" where no git has this checkout."""
    if git.top_of(checkout) != checkout.resolve():  # an installation may lie in a project of git's
        return ""
    try:
        words = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=8")
        return git.ask(checkout, *words).decode().strip()
    except UsageError:
        return ""
