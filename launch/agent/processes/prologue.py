"""What a node's shell is told before the workers start: module load, conda activate."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from muster.errors import MusterError

LINES = 5  # of what a prologue that failed has printed


def after_prologue(text: str, env: Mapping[str, str], scratch: str, node: str) -> dict[str, str]:
    """The environment that bash has after it has sourced `text`, given `env`.

    Raises:
        MusterError: it failed, or there is no bash; with the end of what it printed.
    """
    script, result = Path(scratch, "prologue.sh"), Path(scratch, "environment")
    script.write_text(text, encoding="utf-8")
    # Python itself writes the environment down: a PATH that has changed may lack `env`.
    dump = (
        "import os, sys\n"
        "pairs = [name + b'=' + value for name, value in os.environb.items()]\n"
        "open(sys.argv[1], 'wb').write(bytes(1).join(pairs))"
    )
    line = '. "$1" && exec "$2" -ISc "$3" "$4"'
    words = ["bash", "--noprofile", "--norc", "-c", line, "prologue", str(script)]
    try:
        done = subprocess.run(
            [*words, sys.executable, dump, str(result)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError as error:
        raise MusterError(f"--prologue on {node}: bash: {error.strerror}") from None
    if done.returncode or not result.exists():
        printed = "".join(f"\n{one}" for one in (done.stdout + done.stderr).splitlines()[-LINES:])
        raise MusterError(f"--prologue on {node} ended with exit code {done.returncode}:{printed}")
    pairs = (pair.partition(b"=") for pair in result.read_bytes().split(b"\0"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
