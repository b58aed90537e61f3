"""Whether a program of the user's can start, as far as that is seen before anything does."""

import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from launch.starters.base import starter_of
from muster.worker.function_call import ABOUT, CALL

# What is wrong with the script on stdin, after the number of the line, or 0.
COMPILE = """
import sys
try:
    compile(sys.stdin.buffer.read(), "script", "exec", dont_inherit=True)
except (SyntaxError, ValueError) as error:
    print(getattr(error, "lineno", 0) or 0, getattr(error, "msg", error))
"""


def problems(words: Sequence[str], cwd: Path, python: str) -> Iterator[str]:
    """What would keep the program from starting, as far as that is seen from here."""
    if words[0] == "-m":
        yield from _module_problems(words, cwd, python)
    elif words[0] == "--function":
        yield from _function_problems(words, python)
    elif words[0].endswith(".py"):
        yield from _script_problems(cwd / words[0], words[0], python)
    else:
        found = cwd / words[0] if "/" in words[0] else words[0]
        if shutil.which(found) is None:
            yield f"{words[0]}: no such program, or it may not be run; looked in {cwd} and on PATH"


def python_problems(python: str, workers: str) -> Iterator[str]:
    """Whether `python` has what starts the workers; one that is not here is asked on its node."""
    needed = starter_of(workers).needs
    if needed is None or not Path(python).exists():
        return
    if not _has(python, needed):
        yield (
            f"{python} has no {needed}, which --workers {workers} needs; name another with "
            "--python, or use --workers manual"
        )


def _has(python: str, package: str) -> bool:
    """Whether that Python finds a package, which is not imported for it."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return not subprocess.run([python, "-Ic", code], capture_output=True, check=False).returncode


def _function_problems(words: Sequence[str], python: str) -> Iterator[str]:
    folder = Path(*words[1:2])
    if not all((folder / name).is_file() for name in (CALL, ABOUT)):
        yield f"--function {folder}: nothing that muster.launch has left"
    elif Path(python).exists() and not _has(python, "cloudpickle"):
        name = json.loads((folder / ABOUT).read_text(encoding="utf-8"))["name"]
        yield (
            f"{python} has no cloudpickle, by which {name} was pickled; install it there, or name "
            "another Python with python="
        )


def _script_problems(path: Path, name: str, python: str) -> Iterator[str]:
    """`python` is to judge the syntax, which is another one in each version."""
    try:
        text = path.read_bytes()
    except OSError as error:
        yield f"{name}: {error.strerror}; looked in {path.parent}"
        return
    if not Path(python).exists():
        return  # the nodes have another Python, which says so there
    asked = [python, "-Ic", COMPILE]
    printed = subprocess.run(
        asked, input=text, capture_output=True, check=False
    ).stdout.splitlines()
    for line in printed[-1:]:  # a Python may say more at its start
        number, _, problem = line.decode(errors="replace").partition(" ")
        if number.isdigit() and problem:
            where = f":{number}" if number != "0" else ""
            yield f"{name}{where}: {problem}: it does not compile"


def _module_problems(words: Sequence[str], cwd: Path, python: str) -> Iterator[str]:
    if len(words) < 2:
        yield "-m needs the name of a module: -- -m package.module"
        return
    module = words[1]
    if Path(python).exists() and not _is_found_by(python, module, cwd):
        yield f"-m {module}: no such module in {cwd} or in the packages of {python}"


def _is_found_by(python: str, module: str, cwd: Path) -> bool:
    """Whether it has such a module; unlike `find_spec`, this runs no package's `__init__.py`."""
    code = (
        "import importlib.machinery, sys\n"
        "path, name = None, ''\n"
        "if sys.argv[1].partition('.')[0] in sys.builtin_module_names: sys.exit(0)\n"
        "for part in sys.argv[1].split('.'):\n"
        "    name = name + '.' + part if name else part\n"
        "    spec = importlib.machinery.PathFinder.find_spec(name, path)\n"
        "    if spec is None: sys.exit(1)\n"
        "    path = list(spec.submodule_search_locations or ())\n"
    )
    asked = [python, "-c", code, module]
    return not subprocess.run(asked, cwd=cwd, capture_output=True, check=False).returncode
