"""A test is skipped if something that it needs is missing; the last lines say so, with a remedy."""

import os
import sys

import pytest

from muster.checkout import CHECKOUT
from tests import required
from tests.commands import call

TESTS = """
import pytest

@pytest.mark.needs("no-such-program")
@pytest.mark.parametrize("number", range(2))
def test_with_program(number):
    raise AssertionError

def test_for_other_reason():
    pytest.skip("no IPv6 here")
"""


def test_last_lines_list_every_skipped_test(tmp_path):
    (tmp_path / "test_it.py").write_text(TESTS)
    words = ["-m", "pytest", "-p", "tests.required", "-p", "no:cacheprovider", "-n1"]
    words += ["-c", os.devnull, f"--rootdir={tmp_path}", "test_it.py"]
    env = {"PYTHONPATH": str(CHECKOUT), "REQUIRE_ALL": "", required.NOT_TRIED: ""}
    done = call(sys.executable, *words, cwd=tmp_path, env=env)
    assert sorted(done.stdout.splitlines()[-2:]) == [
        "not tried: 1 test: no IPv6 here",
        "not tried: 2 tests that need no-such-program",
    ], done.stdout + done.stderr


def test_only_what_can_be_installed_fails_where_all_is_required(monkeypatch):
    monkeypatch.setenv("REQUIRE_ALL", "1")
    monkeypatch.setattr(required, "is_there", lambda thing: thing == "sh")
    with pytest.raises(pytest.fail.Exception, match=r"it needs rsync, GPU$"):
        required.need("sh", "rsync", "GPU")
    with pytest.raises(pytest.skip.Exception, match=r"it needs GPU$"):
        required.need("sh", "GPU")
