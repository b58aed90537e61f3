"""Where this user's files are that can be made again: `~/.cache/muster`."""

import os
from pathlib import Path

from muster.errors import UsageError


def cache_folder() -> Path:
    """As XDG_CACHE_HOME says, or below the user's home.

    Raises:
        UsageError: it does not say, and the user has no home, as in some containers.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "muster"
    except RuntimeError:
        raise UsageError(
            "HOME is not set, and this user has no home folder: nothing can be kept for later "
            "runs; set HOME, or XDG_CACHE_HOME to a folder that can be written"
        ) from None
