"""What `make versions` runs, and what it says of versions that cannot be tried."""

import ast
import sys
from unittest import mock

from muster.checkout import CHECKOUT
from tests.versions import __main__ as versions

# Modules that have another name than their package.
PACKAGE_OF = {"yaml": "PyYAML", "dotenv": "python-dotenv"}


def test_its_tests_exist_and_what_they_import_is_installed():
    paths = [CHECKOUT / one for one in versions.TESTS]
    assert [path for path in paths if not path.exists()] == []
    files = [path for path in paths if path.suffix]
    files += [file for path in paths for file in path.rglob("*.py")]
    imported = set()
    for file in files:
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Import):
                imported |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(str(node.module).partition(".")[0])
    own = {"configs", "launch", "muster", "tests", "train"}
    packages = {PACKAGE_OF.get(name, name) for name in imported - sys.stdlib_module_names - own}
    assert packages <= {"torch", *versions.PACKAGES}


def test_missing_python_version_is_skipped_without_failure(capsys):
    assert versions.main(["2.11.0@2.99"]) == 0
    assert "torch 2.11.0, Python 2.99, not run: no Python 2.99 here" in capsys.readouterr().out


def test_a_torch_that_cannot_be_had_is_a_failure(capsys):
    with mock.patch.object(versions, "made", return_value=None):
        assert versions.main(["99.0"]) == 1
    assert "no torch 99.0 for Python" in capsys.readouterr().out
