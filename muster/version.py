"""What `muster --version` prints: the version, the commit of a checkout, and the Python."""

import platform
import sys
from pathlib import Path

import muster
from muster import git


def version_text(checkout: Path) -> str:
    """`muster 0.2.0 (/home/me/muster, commit 1a2b3c4d), Python 3.12.1 (/usr/bin/python3)`."""
    words = ("describe", "--always", "--dirty", "--exclude=*", "--abbrev=8")
    commit = git.ask_top(checkout, *words)
    place = f"{checkout}, commit {commit}" if commit else str(checkout)
    python = f"Python {platform.python_version()} ({sys.executable})"
    return f"muster {muster.__version__} ({place}), {python}"
