"""Which Python runs what is submitted, where no activated shell will be."""

import os
import shutil
from pathlib import Path

from configs.plugins import REPOSITORY
from muster.errors import MusterError


def python() -> str:
    """$MUSTER_PYTHON, else the checkout's own environment.

    Raises:
        MusterError: there is neither.
    """
    chosen = os.environ.get("MUSTER_PYTHON")
    if chosen is not None:
        found = shutil.which(chosen)
        if found is None:
            raise MusterError(f"MUSTER_PYTHON is {chosen!r}, but there is no such program")
        return str(Path(found).absolute())
    own = REPOSITORY / ".venv" / "bin" / "python"
    if not own.exists():
        raise MusterError(
            f"no Python at {own}; make it with: make -C {REPOSITORY} install, or set MUSTER_PYTHON"
        )
    return str(own)
