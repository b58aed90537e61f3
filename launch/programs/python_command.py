"""Read `python train.py` as the program: it means the script, which Muster starts with Python.

Then its traceback is in the records, and the chosen Python runs it. With options beside -u, and
without a script or module, `python` stays a command like any other.
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

    `python` is the value of --python; a Python in front of the program replaces None. It is a
    problem if both name a Python, and not the same.
    """
    named, *program = words
    while program[:1] == ["-u"]:  # no worker's output is buffered
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
