"""The project of a user's that a folder belongs to: its runs are kept there."""

import os
import subprocess
from pathlib import Path


def project_of(cwd: Path) -> Path:
    """The folder of the project that `cwd` belongs to: what git says, else `cwd` itself."""
    asked = ["git", "-C", str(cwd), "rev-parse", "--show-toplevel"]
    try:
        done = subprocess.run(asked, capture_output=True, check=False)
    except OSError:
        return cwd
    return cwd if done.returncode else Path(os.fsdecode(done.stdout.removesuffix(b"\n")))
