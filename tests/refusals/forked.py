"""Run commands in forks of a process with our modules imported, so that each takes milliseconds.

Each line of standard input requests one command: its words, folder, environment, and the file for
its output. The answer is a line with its exit code.
"""

import importlib
import json
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from muster import command, run_files
from muster.checkout import CHECKOUT

IMPORTED = "submit sweep study jobs doctor testbed launchers.local launchers.slurm launchers.ssh"
IMPORTED += " leading.batch_job programs.shown_settings ssh.login_node.__main__ nodes.sending"


def main() -> None:
    # before other modules import these; the checkout's own logs/ may have runs
    command.become = become  # type: ignore[assignment]
    run_files.own_logs = lambda: Path(os.environ["HOME"], "muster", "logs")
    for name in IMPORTED.split():
        importlib.import_module(f"launch.{name}")
    for line in sys.stdin:
        asked = json.loads(line)
        if not (child := os.fork()):
            try:
                begin(**asked)
            except SystemExit as ended:  # tearing down the modules would take longer than the rest
                os._exit(int(ended.code or 0))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def begin(words: Sequence[str], folder: str, env: Mapping[str, str], output: str) -> NoReturn:
    """Become this command."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]  # stderr is, too
    first, *rest = words
    if first == "muster":
        sys.argv = [first, *rest]
        command.main()
    elif first == "python" and rest[0].startswith(("launch/", "train/", "muster/")):
        become(*rest)
    os.execvp(first, words)


def become(script: str, *words: str, typed: str = "") -> NoReturn:
    """Run a script as `muster.command.become` does, but in this process."""
    path = CHECKOUT / script
    sys.argv = [str(path), *words]
    sys.orig_argv = [sys.executable, *command.typed_word_options(typed), *sys.argv]
    sys.path.insert(0, str(path.parent))
    runpy.run_path(str(path), run_name="__main__")
    sys.exit(0)


if __name__ == "__main__":
    main()
