"""Read `python train.py` as the program: it means the script, which Muster starts with Python.

Then its traceback is in the records, and the chosen Python runs it. `python -c`, and anything else
that names no script or module, stays a command like any other.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PYTHON = re.compile(r"python(\d(\.\d+t?)?)?")
OF_ANY_ENVIRONMENT = ("python", "python3")  # they name no particular Python
# Options in one word, as in -uO; the last one may have a value, in this word or the next one.
CLUSTER = re.compile(r"-(?!$)([^-cmWX]*)(?:([mWX])(.*))?", re.DOTALL)
# The variable for an option; --env sets it for all workers of the program.
VARIABLES = {
    "-O": "PYTHONOPTIMIZE=1",
    "-OO": "PYTHONOPTIMIZE=2",
    "-B": "PYTHONDONTWRITEBYTECODE=1",
    "-s": "PYTHONNOUSERSITE=1",
    "-P": "PYTHONSAFEPATH=1",
    "-v": "PYTHONVERBOSE=1",
    "-X dev": "PYTHONDEVMODE=1",
    "-X utf8": "PYTHONUTF8=1",
    "-X importtime": "PYTHONPROFILEIMPORTTIME=1",
    "-X tracemalloc": "PYTHONTRACEMALLOC=1",
}
# Options that each worker has already: its output is not buffered, and faulthandler is on.
HAS_ALREADY = ("-u", "-X faulthandler")


@dataclass(frozen=True)
class PythonCommand:
    """`python [option ...] script.py [argument ...]`, or `... -m module [argument ...]`."""

    python: str  # as typed
    options: Sequence[str]  # options of Python that the workers do not have already
    program: Sequence[str]  # the program as it is typed for Muster

    @property
    def interpreter(self) -> str | None:
        """The particular Python that the command names; None: that of the active environment."""
        return None if self.python in OF_ANY_ENVIRONMENT else self.python


def without_python(
    words: Sequence[str], python: str | None
) -> tuple[Sequence[str], str | None, list[str]]:
    """The program without `python` in front, the value of --python, and the problems.

    `python` is the value of --python; a Python in front of the program replaces None. It is a
    problem if both name a Python, or if the command has options that cannot be passed on.
    """
    command = parse_command(words)
    if command is None:
        return words, python, []
    named = command.interpreter
    program = shlex.join(command.program)
    problems = [_unsupported_options(command, words)] if command.options else []
    if named is not None and python is not None and _is_other(named, python) and not problems:
        problems.append(
            f"--python {python}, and {named} in front of {command.program[0]}, are two; type "
            f"--python {shlex.quote(named)} -- {program}"
        )
    return command.program, python or named, problems


def _is_other(python: str, other: str) -> bool:
    return os.path.normpath(python) != os.path.normpath(other)


def parse_command(words: Sequence[str]) -> PythonCommand | None:
    """The command in these words; None if they are no call of Python with a script or a module."""
    if not PYTHON.fullmatch(Path(words[0]).name):
        return None
    options: list[str] = []
    rest = list(words[1:])
    while rest and (cluster := CLUSTER.fullmatch(rest[0])):
        del rest[0]
        switches, with_value, value = cluster.groups()
        options += [f"-{letter}" for letter in switches]
        if with_value is None:
            continue
        if not value:
            if not rest:
                return None
            value = rest.pop(0)
        if with_value == "m":
            return PythonCommand(words[0], _needed(options), ("-m", value, *rest))
        options.append(f"-{with_value} {value}")
    if not rest or rest[0].startswith("-") or not rest[0].endswith(".py"):
        return None  # also for -c and --version
    return PythonCommand(words[0], _needed(options), tuple(rest))


def _needed(options: Sequence[str]) -> Sequence[str]:
    """The options that a worker does not have already; `-O -O` becomes -OO."""
    needed = [option for option in options if option not in HAS_ALREADY]
    if needed.count("-O") > 1:
        needed = ["-OO", *(option for option in needed if option != "-O")]
    return needed


def _unsupported_options(command: PythonCommand, words: Sequence[str]) -> str:
    """A line with what to type instead of the options."""
    listed = " ".join(command.options)
    variables = [*_variables(command.options)]
    named = [] if command.interpreter is None else ["--python", command.interpreter]
    flags = shlex.join([*named, *(word for text in variables for word in ("--env", text))])
    line = f"{flags} -- {shlex.join(command.program)}"
    if len(variables) < len(command.options):  # some option has no variable: as any other command
        line = f"-- {shlex.join(['env', *words])}"
    return (
        f"{command.python} {listed}: Muster starts Python itself, without these options; type "
        f"{line}"
    )


def _variables(options: Sequence[str]) -> Iterator[str]:
    for option in options:
        if option in VARIABLES:
            yield VARIABLES[option]
        elif option.startswith("-W ") and sum(other.startswith("-W ") for other in options) == 1:
            yield f"PYTHONWARNINGS={option.removeprefix('-W ')}"
