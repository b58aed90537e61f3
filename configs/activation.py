"""What a command does before it has imported what it needs; standard library only."""

import signal
import sys
from pathlib import Path
from typing import NoReturn


def end_at_ctrl_c() -> None:
    """Have Ctrl-C end this process, without a traceback of imports, until `entry_point.run`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def explain(missing: ModuleNotFoundError) -> NoReturn:
    """End a script outside the environment: one line says what is missing, and what to do."""
    root = Path(__file__).resolve().parent.parent
    ready = (root / ".venv" / "bin" / "activate").exists()
    do = f"source {root}/.venv/bin/activate" if ready else f"make -C {root} setup"
    print(
        f"error: {sys.executable} has no {missing.name}; activate Muster's environment: {do}",
        file=sys.stderr,
    )
    sys.exit(2)
