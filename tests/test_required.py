"""A test that needs what is not there is skipped; the last lines say so, and how to have it."""

import os
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from muster.checkout import CHECKOUT
from tests import required
from tests.commands import call
from tests.written import executable

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
def test_with_rsync(number):
    raise AssertionError

def test_with_another_program(program):
    raise AssertionError
"""


def last_lines_of_a_session(folder: Path, *words: str) -> list[str]:
    words = ("-m", "pytest", "-p", "tests.required", "-p", "no:cacheprovider", "-rs", *words)
    env = {"PYTHONPATH": str(CHECKOUT), "PATH": str(folder), "REQUIRE_ALL": ""}
    env[required.NOT_TRIED] = str(folder / "not-tried")
    words += ("-c", os.devnull, f"--rootdir={folder}", "test_it.py")
    done = call(sys.executable, *words, cwd=folder, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, summary, first, second, remedy = done.stdout.splitlines()
    assert "1 passed, 4 skipped" in summary
    return [*sorted([first, second]), remedy]


@pytest.mark.matrix
def test_last_lines_list_skipped_tests_and_install_command(tmp_path):
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


WITHOUT = CHECKOUT / "tests" / "without_packages.sh"
# What starts no workers of those that need these programs, and their neighbours.
AFFECTED = """
tests/launch/ssh/test_transfer.py tests/launch/ssh/test_node_setup.py
tests/launch/ssh/test_openssh.py tests/launch/nodes/test_survey.py
tests/launch/checks/test_examination.py tests/launch/test_documents.py
tests/launch/launchers/test_base.py tests/cluster/test_testbed.py
""".split()
WAITS = "silent or silence or between_two"  # of their tests, those that wait for a time limit


@pytest.fixture
def without_programs(tmp_path, monkeypatch) -> list[str]:
    """The words before a command that hide the programs: by root from all, else on PATH."""
    (tmp_path / "upper").mkdir()
    hidden = required.installed_programs()
    words = ["unshare", "--mount", str(WITHOUT), str(tmp_path / "upper"), *map(str, hidden), "--"]
    with suppress(FileNotFoundError):
        if call(*words, "true").returncode == 0:
            return words
    (tmp_path / "bin").mkdir()
    for folder in reversed(required.program_folders()):
        for path in folder.iterdir() if os.access(folder, os.R_OK) else ():
            if path not in hidden:
                (link := tmp_path / "bin" / path.name).unlink(missing_ok=True)
                link.symlink_to(path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return []


@pytest.mark.matrix
def test_where_no_program_is_installed_nothing_fails(without_programs):
    words = [sys.executable, "-m", "pytest", "--quick", "-p", "no:cacheprovider", *AFFECTED]
    words += ["-m", "not slow and not matrix", "-k", f"not ({WAITS})"]
    env = {"REQUIRE_ALL": "", required.NOT_TRIED: ""}
    done = call(*without_programs, *words, cwd=CHECKOUT, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, remedy = [one for one in done.stdout.splitlines() if "need" in one]
    named = {one for line in lines for one in line.rpartition("need ")[2].split(", ")}
    assert {"rsync", "ip", "sshd", "slurmd"} <= named
    assert "sudo make packages" in remedy


def test_skips_for_other_things_have_own_remedies():
    *_, only = required.last_lines(Counter({"mypy": 2}))
    assert only == "install the developers' tools: make setup"
    *_, only = required.last_lines(Counter({"root": 2}))
    assert only == "run all tests as root: sudo make test"
    *_, packages, root = required.last_lines(Counter({"root, sshd": 1, "rsync": 1}))
    assert "make packages" in packages and root == only
    *_, container = required.last_lines(Counter({"namespaces": 1}))
    assert "--privileged" in container
    assert required.last_lines(Counter()) == []
