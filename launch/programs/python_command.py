"""Read the program `python train.py` as the script train.py, which Muster starts with Python.

This way, its traceback gets into the records, and the chosen Python runs it. With options other
than -u, or without a script or module, `python` remains an ordinary command.
"""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

PYTHON = re.compile(r"python(\d(\.\d+t?)?)?")
ANY_PYTHON = ("python", "python3")  # they name no particular Python


def without_python(
    words: Sequence[str], python: str | None
) -> tuple[Sequence[str], str | None, list[str]]:
    """The program without `python [-u]` in front, the value of --python, and the problems.

    `python` is the value of --python; if it is None, a Python in front of the program replaces it.
    It is a problem if the two are different Pythons.
    """
    named, *program = words
    while program[:1] == ["-u"]:  # not needed: no worker's output is buffered
        program.pop(0)
    first = "".join(program[:1])
    is_module = first == "-m" and len(program) > 1
    is_script = first.endswith(".py") and not first.startswith("-")
    if not PYTHON.fullmatch(Path(named).name) or not (is_module or is_script):
        return words, python, []
    if named in ANY_PYTHON:
        return program, python, []
    problems = []
    if python is not None and os.path.normpath(python) != os.path.normpath(named):
        problems.append(
            f"--python {python} and {named} before {first} are two different Pythons"
            f"\ntip: type --python {shlex.quote(named)} -- {shlex.join(program)}"
        )
    return program, python or named, problems
