"""A worker calls the function that it finds in its folder, if it may be unpickled."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from muster.launching import write_call
from muster.worker.function_call import read_private, write_private
from tests import commands
from tests.muster.worker import shims
from tests.muster.worker.shims import Mute


def call(folder: Path) -> tuple[int, dict]:
    """Run a worker on the call in `folder`; return its exit code and the record of its end."""
    env = {"MUSTER_RUN_DIR": str(folder / "run"), "RANK": "1"}
    done = commands.call(sys.executable, shims.WORKER_MAIN, "--function", folder / "call", env=env)
    return done.returncode, shims.ended(folder / "run", 1)


@pytest.mark.timeout(120)
def test_file_that_others_may_write_is_not_unpickled(tmp_path):
    write_call(tmp_path / "call", "exit", sys.exit, (3,), {})
    (tmp_path / "call" / "call.pkl").chmod(0o620)
    code, record = call(tmp_path)
    assert code == 1 and "other users may have written it" in record["message"]
    (tmp_path / "call" / "call.pkl").chmod(0o600)
    (tmp_path / "call" / "call.json").chmod(0o620)  # it lists the folders for imports
    code, record = call(tmp_path)
    assert code == 1 and "other users may have written it" in record["message"]
    write_private(tmp_path / "mine", b"x")
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        read_private(tmp_path / "link")


def test_exit_codes_are_as_in_a_script(tmp_path):
    write_call(tmp_path / "call", "exit", sys.exit, (3,), {})
    code, record = call(tmp_path)
    assert code == record["code"] == 3


def test_function_pickled_by_another_python_is_refused(tmp_path):
    write_call(tmp_path / "call", "work", print, (), {})
    about = json.loads((tmp_path / "call" / "call.json").read_text())
    (tmp_path / "call" / "call.json").write_text(json.dumps({**about, "python": "3.8"}))
    code, record = call(tmp_path)
    assert code == 1
    assert "work was pickled by Python 3.8, but this is Python" in record["message"]


def raise_mute() -> None:
    raise Mute


def fork_and_return() -> str:
    if os.fork() == 0:
        return "of the forked process"
    os.wait()
    return "of the worker"


def result(folder: Path) -> dict:
    return pickle.loads(read_private(folder / "run" / "results" / "rank_00001.pkl"))


def test_an_exception_without_a_text_comes_back(tmp_path):
    write_call(tmp_path / "call", "raise_mute", raise_mute, (), {})
    assert call(tmp_path)[0] == 1 and type(result(tmp_path)["error"]).__name__ == "Mute"


def test_the_result_is_the_workers_and_not_of_what_it_forks(tmp_path):
    write_call(tmp_path / "call", "fork_and_return", fork_and_return, (), {})
    code, record = call(tmp_path)
    assert (code, record["cause"]) == (0, "done")
    assert result(tmp_path) == {"value": "of the worker"}
