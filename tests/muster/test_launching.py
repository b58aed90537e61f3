"""Functions from Python: scripts as users write them, with real workers, mostly without torch."""

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import muster
from muster.launching import _flags, write_call
from muster.run_files import FUNCTION, LAUNCH, RESULT
from tests.launch.submit import alive, wait_until
from tests.preload import skip_if_quick

FOUR = 'nodes=2, nproc_per_node=2, launcher="local", workers="manual"'
HELPER = """
def double(number):
    return 2 * number
"""


@pytest.fixture
def project(tmp_path, monkeypatch) -> Path:
    """A folder with a module of the user's own, and an index of runs of its own."""
    skip_if_quick()
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "helper.py").write_text(HELPER)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "project"


def run(project: Path, text: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """A script of the user's, whose last line is JSON."""
    (project / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_results_of_every_rank(project):
    done = run(
        project,
        f"""
import json, os, helper, muster

def work(number, more=0):
    print("rank", os.environ["RANK"], "works", flush=True)
    return helper.double(number) + more, int(os.environ["RANK"]), os.environ["MY_KEY"], os.getcwd()

if __name__ == "__main__":
    job = muster.launch(work, 3, kwargs={{"more": 1}}, env={{"MY_KEY": "s3cret"}}, {FOUR})
    lines = sorted(job.logs(follow=True))
    again = muster.job(job.run_id[:-2])
    try:
        again.rank(4)
    except muster.UsageError as error:
        fifth = str(error)
    try:
        list(again.logs(rank=4))
    except muster.UsageError as error:
        fifth += "; " + str(error)
    state = job.status().word
    print(json.dumps([str(job.run_dir), job.results(), again.rank(2), fifth, lines, state]))
""",
    )
    folder, results, third, fifth, lines, state = json.loads(done.stdout)
    rank, logs = fifth.split("; logs: ")
    assert rank.startswith("rank: number is 4; ") and rank.endswith(" has 0 to 3")
    assert logs.startswith(Path(folder).name) and "exit code 2" in logs
    assert results == [[7, rank, "s3cret", str(project)] for rank in range(4)]
    assert third == results[2] and state == "done"
    assert [line.partition("| ")[2] for line in lines] == [f"rank {n} works" for n in range(4)]
    run_dir = Path(folder)
    assert run_dir.parent == project / "logs"
    private = [*FUNCTION.find(run_dir), *RESULT.find(run_dir)]
    assert len(private) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    assert "s3cret" not in LAUNCH.path(run_dir).read_text()
    assert alive(run_dir) == []
    RESULT.path(run_dir, rank=3).chmod(0o640)
    with pytest.raises(PermissionError, match=r"not unpickled, since others may have written it"):
        muster.Job(run_dir).results()
    assert muster.Job(run_dir).rank(2) == (7, 2, "s3cret", str(project))  # no other one is read
    with pytest.raises(PermissionError):
        muster.Job(run_dir).rank(3)


def test_one_exception_from_the_first_that_failed(project):
    done = run(
        project,
        f"""
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
""",
    )
    key, odd, lock = json.loads(done.stdout)
    assert [one[0] for one in (key, odd, lock)] == [2, 2, 2]
    assert {one[1] for one in (key, odd, lock)} == {os.uname().nodename}
    assert key[2].startswith(
        f"rank 2 on {os.uname().nodename}: KeyError: 'nothing'\n\nIn the worker:"
    )
    assert 'script.py", line 15, in work' in key[3] and "muster" not in key[3]
    assert key[4] == "KeyError('nothing')"
    assert (
        "Odd: this and that" in odd[2] and odd[4] == "None"
    )  # it does not come back from a pickle
    assert "returned a lock that cannot be pickled" in lock[2]


def test_the_run_outlives_the_process_that_started_it(project):
    text = f"""
import os, signal, time, muster

def work():
    time.sleep(3)
    return os.getpid()

if __name__ == "__main__":
    job = muster.launch(work, {FOUR})
    open("run_id", "w").write(job.run_id)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (project / "script.py").write_text(text)
    done = subprocess.run([sys.executable, "script.py"], cwd=project, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL
    job = muster.job((project / "run_id").read_text())
    assert len(set(job.results(timeout_s=300))) == 4


def test_a_thread_starts_one_and_another_cancels_it(project, monkeypatch):
    monkeypatch.chdir(project)
    (project / "waits.py").write_text("import time\n\ndef wait():\n    time.sleep(10_000)\n")
    monkeypatch.syspath_prepend(str(project))
    import waits

    started: list[muster.Job] = []

    def start() -> None:
        started.append(muster.launch(waits.wait, launcher="local", workers="manual"))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (job,) = started
    with pytest.raises(TimeoutError, match="goes on after 1 s: running"):
        job.wait(timeout_s=1)
    assert wait_until(lambda: "waits.py" in job.stacks())
    with pytest.raises(ZeroDivisionError), job:
        _ = 1 / 0
    assert job.status().word == "stopped" and alive(job.run_dir) == []
    with pytest.raises(muster.RunFailed, match="stopped by SIGTERM"):
        job.results()


def test_what_cannot_start_is_refused_here(project, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(muster.UsageError, match="unknown flag --colour"):
        muster.launch(print, colour="red")
    with pytest.raises(muster.UsageError, match="--nodes must be at least 1"):
        muster.launch(print, nodes=0)
    with pytest.raises(muster.UsageError, match="dry_run: that is for a command line"):
        muster.launch(print, dry_run=True)
    with pytest.raises(TypeError, match=r"print or its arguments cannot be pickled: .*lock"):
        muster.launch(print, threading.Lock())
    with pytest.raises(muster.UsageError, match=r"fits no run|no runs in"):
        muster.job("no-such-run")
    assert not (project / "logs").exists()


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: muster.launch("train.py"), "muster.launch: function is 'train.py'; it must be a"),
        (lambda: muster.launch(print, kwargs=[1]), "muster.launch: kwargs is a list; give a dict"),
        (lambda: muster.map(None, [1]), "muster.map: function is None; it must be a function"),
        (lambda: muster.map(print, 3), "muster.map: items is a int; give a list of them"),
        (
            lambda: muster.map(print, [1], at_once=0),
            "muster.map: at_once is 0; it must be at least",
        ),
        (lambda: muster.job(3), "muster.job: run is 3; give the id of a run"),
        (lambda: muster.job(""), "muster.job: run is ''; give the id of a run"),
        (lambda: muster.job("--all"), "muster.job: run is '--all'; give the id of a run"),
        (lambda: muster.Job(None), "muster.Job: run_dir is None; give a run's folder"),
        (lambda: muster.Job("a").wait("60"), "wait: timeout_s is '60'; it must be a number"),
        (lambda: muster.Job("a").wait(-1), "wait: timeout_s is -1; it must be at least 0"),
        (lambda: muster.Job("a").results("60"), "wait: timeout_s is '60'; it must be a number"),
        (lambda: muster.Job("a").rank(0.5), "rank: number is 0.5; it must be a whole number"),
        (lambda: muster.Job("a").rank(-1), "rank: number is -1; it must be at least 0"),
        (lambda: muster.Job("a").logs(rank="0"), "logs: rank is '0'; it must be a whole number"),
        (lambda: muster.Job("a").logs(rank=-1), "logs: rank is -1; it must be at least 0"),
        (lambda: muster.on_stop(None), "muster.on_stop: save is None; it must be a function"),
    ],
)
def test_what_makes_no_sense_is_refused_where_it_is_given(call, problem):
    with pytest.raises(muster.UsageError, match=re.escape(problem)):
        call()


def test_flags_as_a_command_line_has_them():
    given = {
        "nodes": "2:4",
        "hosts": ["node0", "node1"],
        "snapshot": False,
        "preflight": True,
        "network": None,
        "env": {"TOKEN": "hidden"},
        "slurm": ["mail-type=END", "comment=mine"],
        "on": "cluster",
    }
    words, env = _flags(given)
    assert words == [
        *("--nodes=2:4", "--hosts=node0,node1", "--no-snapshot", "--preflight", "--env=TOKEN"),
        *("--slurm=mail-type=END", "--slurm=comment=mine", "--on=cluster"),
    ]
    assert "TOKEN" not in env and json.loads(env["MUSTER_ENV"]) == {"TOKEN": "hidden"}
    found, _ = _flags({"slurm": {"comment": "mine"}}, nodes=3, launcher=None)
    assert found == [
        *("--nodes=3", "--nproc-per-node=1", "--launcher=auto", "--slurm=comment=mine"),
    ]
    with pytest.raises(muster.UsageError, match="hosts: takes no dict"):
        _flags({"hosts": {"node0": 2}})


def test_a_run_that_somebody_else_started_has_a_state(tmp_path):
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "config.yaml").touch()
    assert muster.Job(tmp_path / "by-hand").status().word == "unknown"


def test_importing_muster_loads_nothing_else():
    code = (
        "import sys, muster; before = set(sys.modules); muster.launch;"
        "print(json.dumps([sorted(before & set('torch numpy cloudpickle subprocess'.split())),"
        "sorted(set(sys.modules) & set('torch numpy configs launch train'.split()))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import json; {code}"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[], []]


def test_a_call_says_what_its_worker_must_know(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", str(tmp_path.parent), *sys.path])
    write_call(tmp_path / "call", "work", print, (), {})
    about = json.loads((tmp_path / "call" / "call.json").read_text())
    assert about["name"] == "work" and about["path"][:2] == [".", ".."]
    assert not any("site-packages" in one for one in about["path"])


def test_each_item_has_a_run_of_its_own(project):
    done = run(
        project,
        """
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
""",
    )
    found, words, again, none = json.loads(done.stdout)
    assert found[:2] == [[[4, 2]] * 2, [[9, 2]] * 2] and again == [9, 2] and none == 0
    assert found[2][1] == "ValueError('five')" and found[2][0] in (0, 1)
    assert "stopped by SIGTERM" in found[3][2]
    assert "cancelled before it began" in found[5][2]
    assert words == ["done", "done", "failed", "stopped", "stopped", "stopped"]
    (folder,) = (project / "logs" / "sweeps").iterdir()
    assert wait_until(lambda: alive(folder) == [])
