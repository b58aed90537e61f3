"""Functions launched from Python: users' scripts with real workers, mostly without torch."""

import json
import signal
import stat
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import muster
from muster.run_files import FUNCTION, LAUNCH, RESULT
from tests.commands import call
from tests.fork_server import skip_if_quick
from tests.launch.submit import alive, wait_until
from tests.written import write

FOUR = 'nodes=2, nproc_per_node=2, launcher="local", workers="manual"'
HELPER = """
def double(number):
    return 2 * number
"""


def new_project_with_helper(folder: Path, patching: pytest.MonkeyPatch) -> Path:
    """Make a project with a user's module and its own index of runs."""
    skip_if_quick()
    patching.setenv("XDG_STATE_HOME", str(folder / "state"))
    return write(folder / "project", {"helper.py": HELPER})


@pytest.fixture
def project_with_helper(tmp_path, monkeypatch) -> Path:
    return new_project_with_helper(tmp_path, monkeypatch)


def script_output(project: Path, text: str) -> Any:
    """Run a user's script and return its output, read as JSON."""
    (project / "script.py").write_text(text)
    done = call(sys.executable, "script.py", cwd=project)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


WORKS = f"""
import json, os, helper, muster

def work(number, more=0):
    print("rank", os.environ["RANK"], "works", flush=True)
    return helper.double(number) + more, int(os.environ["RANK"]), os.environ["MY_KEY"], os.getcwd()

if __name__ == "__main__":
    job = muster.launch(work, 3, kwargs={{"more": 1}}, env={{"MY_KEY": "s3cret"}}, {FOUR})
    lines = sorted(job.logs(follow=True))
    print(json.dumps([str(job.run_dir), job.results(), lines, job.status().word]))
"""


class Worked(NamedTuple):
    """The output of a script whose function was called on four ranks."""

    run_dir: Path
    results: list
    lines: list[str]
    state: str


@pytest.fixture(scope="module")
def worked(tmp_path_factory) -> Iterator[Worked]:
    with pytest.MonkeyPatch.context() as patching:
        project = new_project_with_helper(tmp_path_factory.mktemp("worked"), patching)
        folder, *printed = script_output(project, WORKS)
        yield Worked(Path(folder), *printed)


def test_results_of_every_rank(worked):
    project = worked.run_dir.parent.parent
    assert project.name == "project" and worked.run_dir.parent == project / "logs"
    assert worked.results == [[7, rank, "s3cret", str(project)] for rank in range(4)]
    printed = [line.partition("| ")[2] for line in worked.lines]
    assert printed == [f"rank {n} works" for n in range(4)] and worked.state == "done"
    assert alive(worked.run_dir) == []


def test_rank_that_a_run_has_not_is_refused(worked):
    name = worked.run_dir.name
    again = muster.job(name[:-2])
    with pytest.raises(muster.UsageError, match=rf"rank: number is 4, .* {name} are 0 to 3"):
        again.rank(4)
    with pytest.raises(muster.UsageError, match=f"logs: {name}: exit code 2"):
        list(again.logs(rank=4))


def test_files_of_a_function_are_private(worked):
    private = [*FUNCTION.find(worked.run_dir), *RESULT.find(worked.run_dir)]
    assert len(private) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert "s3cret" not in LAUNCH.path(worked.run_dir).read_text()


def test_result_that_others_may_have_written_is_not_unpickled(worked):
    again = muster.job(worked.run_dir.name)
    result = RESULT.path(worked.run_dir, rank=3)
    result.chmod(0o640)
    try:
        with pytest.raises(PermissionError, match="other users may have written"):
            again.results()
        own = (7, 2, "s3cret", str(worked.run_dir.parent.parent))
        assert again.rank(2) == own  # no other result is read
    finally:
        result.chmod(0o600)


def test_one_exception_from_the_first_that_failed(project_with_helper):
    text = f"""
import json, os, time, muster

class Odd(Exception):
    def __init__(self, one, two):
        super().__init__(f"{{one}} and {{two}}")

def work(kind):
    if os.environ["RANK"] == "2":
        if kind == "odd":
            raise Odd("this", "that")
        if kind == "lock":
            import threading
            return threading.Lock()
        {{}}["nothing"]
    time.sleep(10_000 if kind != "lock" else 1)

def failure(kind):
    try:
        muster.launch(work, kind, {FOUR}).results()
    except muster.RunFailed as error:
        cause = error.__cause__
        return [error.rank, error.host, str(error), error.traceback, repr(cause)]

if __name__ == "__main__":
    print(json.dumps([failure(kind) for kind in ("key", "odd", "lock")]))
"""
    key, odd, lock = script_output(project_with_helper, text)
    assert [one[0] for one in (key, odd, lock)] == [2, 2, 2]
    assert {one[1] for one in (key, odd, lock)} == {"node1"}  # as in the run's output
    assert key[2].startswith("rank 2 on node1: KeyError: 'nothing'\n\nIn the worker:")
    assert 'script.py", line 15, in work' in key[3] and "muster" not in key[3]
    assert key[4] == "KeyError('nothing')"
    assert "Odd: this and that" in odd[2]
    assert odd[4] == "None"  # it cannot be unpickled
    assert "returned a lock that cannot be pickled" in lock[2]


@pytest.mark.slow
def test_the_run_outlives_the_process_that_started_it(project_with_helper):
    text = f"""
import os, signal, time, muster

def work():
    while not os.path.exists("go"):
        time.sleep(0.05)
    return os.getpid()

if __name__ == "__main__":
    job = muster.launch(work, {FOUR})
    open("run_id", "w").write(job.run_id)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (project_with_helper / "script.py").write_text(text)
    assert call(sys.executable, "script.py", cwd=project_with_helper).returncode == -signal.SIGKILL
    (project_with_helper / "go").touch()
    job = muster.job((project_with_helper / "run_id").read_text())
    assert len(set(job.results(timeout_s=300))) == 4


@pytest.mark.slow
def test_a_thread_starts_one_and_another_cancels_it(project_with_helper, monkeypatch):
    monkeypatch.chdir(project_with_helper)
    (project_with_helper / "waits.py").write_text(
        "import time\n\ndef wait():\n    time.sleep(10_000)\n"
    )
    monkeypatch.syspath_prepend(str(project_with_helper))
    import waits

    with ThreadPoolExecutor(1) as pool:
        flags = {"launcher": "local", "workers": "manual"}
        job = pool.submit(muster.launch, waits.wait, **flags).result()
    with pytest.raises(TimeoutError, match="after 1 s: running"):
        job.wait(timeout_s=1)

    def is_seen() -> bool:
        try:
            return "waits.py" in job.stacks()
        except muster.MusterError:  # its leader has not answered in time
            return False

    wait_until(is_seen)
    with pytest.raises(ZeroDivisionError), job:
        _ = 1 / 0
    assert job.status().word == "stopped" and alive(job.run_dir) == []
    with pytest.raises(muster.RunFailed, match="stopped by SIGTERM"):
        job.results()


@pytest.mark.slow
def test_each_item_has_a_run_of_its_own(project_with_helper):
    text = """
import json, os, time, muster

def square(number):
    if number == 5:
        raise ValueError("five")
    time.sleep(10_000 if number == 7 else 0.5)
    return number * number, int(os.environ["WORLD_SIZE"])

def outcome(job):
    try:
        return job.results()
    except muster.RunFailed as error:
        return [error.rank, repr(error.__cause__), str(error).splitlines()[0]]

if __name__ == "__main__":
    flags = {"nproc_per_node": 2, "launcher": "local", "workers": "manual"}
    jobs = muster.map(square, [2, 3, 5, 7, 7, 8], at_once=2, **flags)
    found = [outcome(job) for job in jobs[:3]]
    while jobs[3].status().word != "running":
        time.sleep(0.1)
    for job in reversed(jobs[3:]):
        job.cancel()
    found += [outcome(job) for job in jobs[3:]]
    words = [job.status().word for job in jobs]
    again, none = muster.job(jobs[1].run_id).rank(0), muster.map(square, [])
    print(json.dumps([found, words, again, len(none)]))
"""
    found, words, again, none = script_output(project_with_helper, text)
    assert found[:2] == [[[4, 2]] * 2, [[9, 2]] * 2] and again == [9, 2] and none == 0
    assert found[2][1] == "ValueError('five')" and found[2][0] in (0, 1)
    assert "stopped by SIGTERM" in found[3][2]
    assert "cancelled before it began" in found[5][2]
    assert words == ["done", "done", "failed", "stopped", "stopped", "stopped"]
    (folder,) = (project_with_helper / "logs" / "sweeps").iterdir()
    wait_until(lambda: alive(folder) == [])


ENDS = {
    "exit": (7, "error: rank 1 on node1: exit code 7", "no data", "exit", "exit code 7"),
    "left early": (1, "error: rank 1 on node1 ended with exit code 0 while ...", "", "done", ""),
}


@pytest.mark.parametrize("sentence", ["rank 1 on node1: ValueError: 7", None])
def test_traceback_of_a_rank_is_once_in_the_failure(tmp_path, sentence):
    """An earlier version of Muster recorded no sentence."""
    lines = "Traceback (most recent call last):\nValueError: 7"
    end = {"code": 1, "message": lines, "rank": 1, "cause": "program", "sentence": sentence}
    rank = {"rank": 1, "host": "a", "message": "ValueError: 7", "traceback": f"{lines}\n"}
    rank |= {"cause": "crash", "code": 1, "time_unix_s": 1.0}
    write(tmp_path, {"exit.json": end, "exits/rank_00001.json": rank})
    failure, _ = muster.Job(tmp_path)._failure(1)
    assert str(failure) == (f"{sentence}\n\nIn the worker:\n{lines}" if sentence else lines)


@pytest.mark.parametrize("how", ENDS)
def test_last_lines_are_the_failure_of_a_rank_without_exception(tmp_path, how):
    code, message, output, cause, own = ENDS[how]
    end = {"code": code, "message": message, "rank": 1, "cause": "program", "output": output}
    end["end"] = {"node": "node1"}  # the node's name in the run
    rank = {"rank": 1, "host": "a", "message": own, "traceback": "", "cause": cause, "code": 0}
    write(tmp_path, {"exit.json": end, "exits/rank_00001.json": {**rank, "time_unix_s": 1.0}})
    failure, _ = muster.Job(tmp_path)._failure(code)
    assert failure.host == "node1"
    text = f"rank 1 on node1: {own}" if own else message.removeprefix("error: ")
    assert str(failure) == text + (f"\n\nIts output ends with:\n{output}" if output else "")
