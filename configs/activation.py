"""A script started outside the environment says how to activate it; standard library only."""

import sys
from pathlib import Path
from typing import NoReturn


def explain(missing: ModuleNotFoundError) -> NoReturn:
    """End the process with one line that says which package is missing and what to do."""
    root = Path(__file__).resolve().parent.parent
    ready = (root / ".venv" / "bin" / "activate").exists()
    do = f"source {root}/.venv/bin/activate" if ready else f"make -C {root} setup"
    print(
        f"error: {sys.executable} has no {missing.name}; activate Muster's environment: {do}",
        file=sys.stderr,
    )
    sys.exit(2)
