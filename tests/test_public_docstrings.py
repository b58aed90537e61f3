"""Each public name has a line in `help(muster)`, and each function's example runs as shown."""

import inspect
import re

import pytest

import muster
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import interpreter
from tests.written import write

EXCEPTIONS = ("MusterError", "RunFailed", "UsageError")
FUNCTIONS = [name for name in muster.__all__ if name not in (*EXCEPTIONS, "Job")]
# Runs each example in its own folder and forked process, which inherits the imports.
RUN = """
import doctest, os, sys, accelerate, torch, muster
known = {"accelerate": accelerate, "muster": muster, "os": os, "torch": torch}
for name in sys.argv[1:]:
    if (child := os.fork()) == 0:
        os.chdir(name)
        tests = doctest.DocTestFinder(recurse=False).find(getattr(muster, name), name, globs=known)
        for one in tests:
            print(name, len(one.examples), "examples", flush=True)
            doctest.DocTestRunner().run(one)
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(name)
"""


def test_help_has_a_line_for_each_public_name():
    rows = re.findall(r"^ {4}(\w+(?:, \w+)*) {2,}\w[^\n]+$", str(muster.__doc__), re.M)
    assert sorted(", ".join(rows).split(", ")) == sorted(muster.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_sections_of_help_stand_on_lines_of_their_own(name):
    """A docstring that was wrapped like a paragraph has "Args: model: ..." within a line."""
    function = getattr(muster, name)
    lines = str(inspect.getdoc(function)).splitlines()
    heads = [line for line in lines if re.search(r"\b(Args|Returns|Raises|Yields):", line)]
    assert set(heads) <= {"Args:", "Returns:", "Raises:", "Yields:"}
    assert not [line for line in lines if ">>> " in line and not line.lstrip().startswith(">>> ")]
    if "Args:" in heads:
        end = next((at for at, line in enumerate(lines) if line == "Raises:"), len(lines))
        entries = (
            re.match(r" {4}(\**\w+): \S", line) for line in lines[lines.index("Args:") : end]
        )
        named = [entry[1].strip("*") for entry in entries if entry]
        assert named == list(inspect.signature(function).parameters)


@pytest.mark.slow
def test_example_of_a_docstring_runs(tmp_path):
    page = (CHECKOUT / "docs" / "library.md").read_text(encoding="utf-8")
    (metric,) = re.findall(r"```python\n((?:(?!```).)*class MyMetric.*?)```", page, re.DOTALL)
    write(tmp_path, {f"{name}/my_metric.py": metric for name in FUNCTIONS})
    env = {"PYTHONPATH": str(CHECKOUT)}
    done = call(interpreter(), "-c", RUN, *FUNCTIONS, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    lines = "".join(rf"{name} [1-9]\d* examples\n" for name in FUNCTIONS)
    assert re.fullmatch(lines, done.stdout), done.stdout
