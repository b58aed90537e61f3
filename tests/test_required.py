"""A test that needs what is not there is skipped; the last lines say so, and how to have it."""

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import required
from tests.commands import call
from tests.written import executable

REPOSITORY = Path(__file__).parents[1]
TESTS = """
import pytest
from tests.required import need

@pytest.fixture
def program():
    need("no-such-program", "rsync")

@pytest.mark.needs("sh")
def test_that_is_run():
    pass

@pytest.mark.needs("sh", "rsync")
@pytest.mark.parametrize("number", range(3))
def test_that_needs_rsync(number):
    raise AssertionError

def test_that_needs_another(program):
    raise AssertionError
"""


def last_lines_of_a_session(folder: Path, *words: str) -> list[str]:
    words = ("-m", "pytest", "-p", "tests.required", "-p", "no:cacheprovider", "-rs", *words)
    env = {"PYTHONPATH": str(REPOSITORY), "PATH": str(folder), "REQUIRE_ALL": ""}
    env[required.NOT_TRIED] = str(folder / "not-tried")
    words += ("-c", os.devnull, f"--rootdir={folder}", "test_it.py")
    done = call(sys.executable, *words, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary, first, second, remedy = done.stdout.splitlines()
    assert "1 passed, 4 skipped" in summary
    return [*sorted([first, second]), remedy]


def test_the_last_lines_say_what_was_not_tried_in_both_halves_and_what_installs_it(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    executable(tmp_path / "sh", "")
    remedy = "install what they need: sudo make packages (Debian, Ubuntu)"
    assert last_lines_of_a_session(tmp_path, "-n0") == [
        "not tried: 1 test that needs no-such-program, rsync",
        "not tried: 3 tests that need rsync",
        remedy,
    ]
    assert last_lines_of_a_session(tmp_path, "-n1") == [
        "not tried: 2 tests that need no-such-program, rsync",
        "not tried: 6 tests that need rsync",
        remedy,
    ]


def test_where_nothing_may_be_skipped_what_needs_it_fails(monkeypatch):
    monkeypatch.setenv("REQUIRE_ALL", "1")
    with pytest.raises(pytest.fail.Exception, match=r"it needs no-such-program$"):
        required.need("sh", "no-such-program")


def test_root_and_what_it_may_not_do_have_remedies_of_their_own():
    *_, only = required.last_lines(Counter({"root": 2}))
    assert only == "run all tests as root: sudo make test"
    *_, packages, root = required.last_lines(Counter({"root, sshd": 1, "rsync": 1}))
    assert "make packages" in packages and root == only
    *_, container = required.last_lines(Counter({"namespaces": 1}))
    assert "--privileged" in container
    assert required.last_lines(Counter()) == []
