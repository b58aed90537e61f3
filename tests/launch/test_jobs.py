"""Runs are found, described and ended, even long after their terminal is gone."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import strategies as st

from launch import jobs as commands
from launch.runs import run_record, run_state
from launch.runs.watching.run_document import RunEvents
from muster import json_output
from muster.errors import MusterError, UsageError
from muster.terminal import in_one_line
from tests.commands import begin, call, ended, refused
from tests.damaged_records import RECORDS, damaged_record
from tests.fuzzing import fuzzed
from tests.launch.run_folders import jobs, leader, run_folder
from tests.launch.submit import JOBS
from tests.written import write


def test_state_of_a_run_is_one_word(tmp_path):
    def word(name, *given):
        return run_state.state_of(run_folder(tmp_path, name, *given)).word

    assert word("a") == "unknown"
    assert word("b", leader()) == "running"
    assert word("c", leader(started_unix_s=1.0)) == "lost"  # another process has its number now
    assert word("d", leader(host="elsewhere")) == "elsewhere"
    assert word("e", leader(), {"code": 0, "message": ""}) == "done"
    assert word("f", leader(), {"code": 1, "message": "x\nboom"}) == "failed"
    assert word("g", leader(), {"code": 143, "message": "stopped by SIGTERM"}) == "stopped"
    assert word("h", leader(launcher="nice")) == "running"  # a launcher of another checkout
    code, out, _ = jobs(tmp_path, "list")
    head, *lines = out.splitlines()
    assert code == 0 and head.split() == ["run", "state", "started", "took", "workers", "cause"]
    assert all(line == line.rstrip() for line in lines)
    assert [line.split()[0] for line in lines] == [*"abcdefgh"]
    assert lines[5].split()[1] == "failed" and lines[5].endswith("  boom")
    assert "started workers" in lines[1]
    assert len(jobs(tmp_path, "list", "-n", "1")[1].splitlines()) == 2


def test_list_has_a_line_for_each_run_of_80_columns_and_one_for_a_sweep(tmp_path, ours, other):
    other.run("elsewhere")
    message = {"code": 1, "message": f"RuntimeError: {'no ' * 50}", "time_unix_s": time.time() + 60}
    write(ours.run("20261129-061217-train-2x1"), {"exit.json": message})
    sweep = ours.logs / "sweeps" / "lr"
    for name, end in (("lr-1", {"code": 0, "message": ""}), ("lr-2", None)):
        run_folder(sweep / "runs", name, leader(), end)
        (tmp_path / "muster" / "runs" / f"{name}-0").symlink_to(sweep / "runs" / name)
    write(sweep, {"sweep.json": {}})
    env = {"XDG_STATE_HOME": str(tmp_path), "COLUMNS": "80"}

    def listed(*words):
        done = call(sys.executable, JOBS, "list", *words, cwd=ours.folder, env=env)
        return done.stdout.splitlines()

    _, of_run, of_sweep = listed()
    assert re.fullmatch(r"20261129-061217-train-2x1  failed .* 60 s .*RuntimeError: .*…", of_run)
    assert len(of_run) == 80
    assert of_sweep.startswith("lr (2 runs) ") and of_sweep.endswith("1 running, 1 done")
    names = ["elsewhere", of_run.split()[0], "lr"]
    # the checkout's own logs/ may have runs, too
    shown = [line.split()[0] for line in listed("--all")[1:]]
    assert [name for name in shown if name in names] == names
    (document,) = map(json.loads, listed("--json"))
    names = ["lr-2", "lr-1", of_run.split()[0], "elsewhere"]
    shown = [run["run_id"] for run in document["runs"]]
    assert [name for name in shown if name in names] == names


def test_cancel_waits_for_stop_grace_of_the_run(tmp_path, monkeypatch):
    run, now_s, lines = run_folder(tmp_path, "run", leader()), [0.0], []
    write(run, {"launch.json": {"stop_grace_s": 200.0}})

    def sleep(seconds):
        now_s[0] += 10.0
        if now_s[0] == 220.0:
            run_record.end(run, 75, "stopped cleanly")

    monkeypatch.setattr(run_state, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    monkeypatch.setattr(run_state.LeaderWatcher, "stop", lambda *given: None)
    run_state.cancel(run, lines.append)
    assert lines == ["run: stopped"]
    late = run_folder(tmp_path, "late", leader())
    with pytest.raises(MusterError, match=r"late .* 90 s: running"):
        run_state.cancel(late, lines.append)


def test_a_clock_that_is_set_ends_no_run(tmp_path):
    """The start time of a process moves with the clock; the kernel's count of ticks does not."""

    def word(name, **more):
        return run_state.state_of(run_folder(tmp_path, name, leader(**more))).word

    record = run_record.process_start(os.getpid())
    set_by_1_s = {**record, "started_unix_s": record["started_unix_s"] - 1}
    assert word("a", **set_by_1_s) == "running"
    assert word("b", **{**record, "start_ticks": record["start_ticks"] + 1}) == "lost"
    assert word("c", **{**record, "boot_id": "another"}) == "lost"


def test_run_that_ends_while_its_state_is_read_is_not_lost(tmp_path):
    record = run_record.process_start(os.getpid())
    gone = leader(**{**record, "start_ticks": record["start_ticks"] + 1})

    class Slow(run_state.LeaderWatcher):
        def state(self, run_dir, job, end):
            run_record.end(run_dir, 0, "")  # by its leader, after its end was looked for
            return super().state(run_dir, job, end)

    run = run_folder(tmp_path, "run", gone)
    assert run_state.state_of(run, run_state.Watchers(local=Slow())).word == "done"


def test_run_is_found_by_name_prefix_or_job(tmp_path):
    run_folder(tmp_path, "20260101-one", leader(job_id="77"), {"code": 0, "message": ""})
    run_folder(tmp_path, "20260102-two", leader(job_id="78"), {"code": 0, "message": ""})
    for given, found in [
        ((), "20260102-two"),
        (("20260101-one",), "20260101-one"),
        (("20260101",), "20260101-one"),
        (("77",), "20260101-one"),
        ((f"{tmp_path}/20260101-one/",), "20260101-one"),
    ]:
        assert jobs(tmp_path, "status", *given)[1].startswith(f"{found}: done")
    for words, message in [
        (["status", "2026"], "'2026' matches several runs: 20260102-two, 20260101-one"),
        (["status", "nope"], "'nope'; the latest runs: 20260102-two, 20260101-one"),
        (
            ["status", f"{tmp_path}/x"],
            f"{tmp_path}/x/config.yaml",
        ),
        (["stat"], "command: unknown 'stat'; did you mean python "),
        (
            ["dance"],
            "unknown 'dance'; choose from list, nodes",
        ),
        (["--logs-dir", str(tmp_path / "none"), "status"], "no runs found in"),
    ]:
        assert message in refused(commands.main, "--logs-dir", tmp_path, *words)
    assert jobs(tmp_path / "none", "list")[0] == 0
    assert re.search(r"^ +fetch +copy ", jobs(tmp_path, "--help")[1], re.MULTILINE)


def test_without_a_verb_it_shows_them(tmp_path):
    code, _, err = jobs(tmp_path)
    assert code == 2 and "\nerror: " in err
    verbs = re.findall(r"^    (\w+)  ", err, re.MULTILINE)
    assert verbs == "list nodes status wait logs stacks cancel clean fetch".split()


@pytest.mark.parametrize("verb", ["status", "cancel"])
def test_user_without_runs_sees_no_folder_of_muster(tmp_path, monkeypatch, verb):
    monkeypatch.setattr(commands, "own_logs", lambda: tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["launch/jobs.py", verb])
    with pytest.raises(UsageError, match="no runs found; "):
        commands.main()


def test_no_failure_of_a_node_is_said(tmp_path):
    done = call(sys.executable, JOBS, "nodes", cwd="/", env={"XDG_STATE_HOME": str(tmp_path)})
    assert done.returncode == 0 and done.stdout.startswith("no node ")


def led_by(process):
    return {"pid": process.pid, **run_record.process_start(process.pid)}


OVER = {"exit.json": {"code": 0, "message": ""}}
NAME_IT = "; choose the run to end: muster jobs cancel RUN"


class Project:
    """A folder in which runs are started, and the index of the user's runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = folder / "logs"
        self._state = folder.parent
        self.logs.mkdir(parents=True)
        (self._state / "muster" / "runs").mkdir(parents=True, exist_ok=True)

    def run(self, name: str, **more) -> Path:
        folder = run_folder(self.logs, name, leader(**more))
        (self._state / "muster" / "runs" / f"{name}-0").symlink_to(folder)
        return folder

    def cancel(self) -> str:
        """Cancel without naming a run; return the exit code and the only line, with any tip."""
        done = self.call("cancel")
        (line,) = in_one_line(done.stdout + done.stderr).splitlines()
        return f"{done.returncode} {line}"

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `muster jobs` in the project's folder."""
        env = {"XDG_STATE_HOME": str(self._state)}
        return call(sys.executable, JOBS, *words, cwd=self.folder, env=env)


@pytest.fixture
def ours(tmp_path) -> Project:
    return Project(tmp_path / "ours")


@pytest.fixture
def other(tmp_path) -> Project:
    return Project(tmp_path / "theirs")


@pytest.fixture
def first() -> Iterator[subprocess.Popen]:
    """A process that a run may name as its leader."""
    with ended(subprocess.Popen(["sleep", "1000"])) as process:
        yield process


@pytest.fixture
def second() -> Iterator[subprocess.Popen]:
    with ended(subprocess.Popen(["sleep", "1000"])) as process:
        yield process


def test_cancel_without_a_name_lists_the_runs_of_another_project(ours, other, first):
    other.run("other", **led_by(first))
    none = f"2 error: no run in {ours.logs} is active; elsewhere: other{NAME_IT}"
    assert ours.cancel() == none
    assert first.poll() is None


def test_cancel_without_a_name_lists_several_active_runs(ours, first, second):
    ours.run("a", **led_by(second))
    ours.run("b", host="another-machine")  # it can be ended only there
    ours.run("c", **led_by(first))
    assert ours.cancel() == f"2 error: 2 runs are active: c, a{NAME_IT}"
    assert first.poll() is second.poll() is None


def test_cancel_without_name_ends_only_active_run_of_project(ours, other, first, second):
    other.run("other", **led_by(first))
    run = ours.run("a", **led_by(second))
    ours.run("b", host="another-machine")
    write(ours.run("c", **led_by(first)), OVER)
    ends = threading.Thread(
        target=lambda: second.wait() and run_record.end(run, 143, "stopped by SIGTERM")
    )
    ends.start()
    assert ours.cancel() == "0 a: stopped"
    ends.join()
    assert second.returncode == -signal.SIGTERM and first.poll() is None


def test_cancel_without_a_name_says_that_the_latest_run_is_over(ours):
    ours.run("b", host="another-machine")
    write(ours.run("c"), OVER)
    assert ours.cancel() == "0 c has already ended: done"


def test_latest_run_is_the_active_one_of_this_project(ours, other, first):
    def shown(*words: str) -> str:
        done = ours.call("status", *words)
        return f"{done.stderr}{done.stdout.partition(' ')[0]}"

    write(other.run("theirs"), OVER)
    elsewhere = f"note: no runs in {ours.logs}; this is the latest run in {other.logs}\n"
    assert shown() == f"{elsewhere}theirs:"
    write(ours.run("old"), OVER)
    write(ours.run("new"), OVER)
    write(other.run("newest"), OVER)
    assert shown() == "new:"
    assert shown("logs/old") == "old:"  # as the run's first line has printed it
    ours.run("active", **led_by(first))
    write(ours.run("newer"), OVER)
    assert shown() == "active:"


@pytest.mark.parametrize("words", [["list"], ["status"], ["wait", "run"], ["logs"], ["cancel"]])
def test_logs_dir_is_accepted_before_and_after_the_verb(tmp_path, words):
    run_folder(tmp_path / "logs", "run", leader(), {"code": 0, "message": ""})
    where = ["--logs-dir", str(tmp_path / "logs")]
    both = [
        call(sys.executable, JOBS, *line, cwd="/") for line in ([*where, *words], [*words, *where])
    ]
    assert {(done.returncode, done.stderr) for done in both} == {(0, "")}
    assert both[0].stdout == both[1].stdout


@pytest.mark.parametrize("words", [["logs"], ["logs", "-f"], ["status"], ["list"]])
def test_output_that_cannot_be_written_is_an_error(tmp_path, words):
    write(tmp_path / "run", {"config.yaml": "", "workers/rank_00000.out": "hello\n"})
    with Path("/dev/full").open("wb") as full:
        argv = [sys.executable, JOBS, "--logs-dir", str(tmp_path), *words]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*: the disk is full, .*\n", done.stderr)


@pytest.mark.needs("root")  # only root may give files away
def test_process_named_by_another_users_file_is_not_ended(tmp_path):
    """Such a file may name any process or job of the user who cancels the run."""
    with subprocess.Popen(["sleep", "1000"]) as victim:
        named = {"pid": victim.pid, **run_record.process_start(victim.pid)}
        run = run_folder(tmp_path, "theirs", leader(**named))
        os.chown(run / "job.json", 12_345, 12_345)
        code, _, err = jobs(tmp_path, "cancel", "theirs")
        still_runs = victim.poll() is None
        assert jobs(tmp_path, "status", "theirs")[1].startswith("theirs: running")
        os.chown(run / "job.json", 0, 0)
        run_state.cancel(run, print)
        assert victim.wait() == -signal.SIGTERM
    assert code == 2 and still_runs
    assert f"{run}/job.json belongs to user 12345" in err


@st.composite
def damaged(draw):
    """Draw a file of a run folder, with one value or key changed, or with no valid record."""
    name = draw(st.sampled_from([*RECORDS]))
    whole = RECORDS[name]
    return name, draw(damaged_record(whole)) + b"\n" * name.endswith("jsonl")


@fuzzed(damaged(), st.sampled_from(["run", "a b", "[red]x[]", "\x1b[31m", "caf\udce9", "\u202e"]))
def test_no_record_hides_another_run_or_moves_a_cursor(tmp_path_factory, monkeypatch, record, name):
    logs = tmp_path_factory.mktemp("logs")
    name_of_file, content = record
    without = () if name_of_file in ("exit.json", "job.json") else ("exit.json",)
    whole = {file: it for file, it in RECORDS.items() if file not in without}
    odd = write(logs / name, {**whole, name_of_file: content})
    good = write(logs / "good", {"config.yaml": "", "exit.json": {"code": 0, "message": ""}})
    printed = io.StringIO()
    with Path(os.devnull).open("wb") as documents, contextlib.redirect_stdout(printed):
        monkeypatch.setattr(json_output, "_descriptor", documents.fileno())
        commands._list([odd, good], 20, None)
        commands._status(odd)
        RunEvents(odd).report(last=True)
        commands._nodes(None)
    shown = printed.getvalue()
    assert any(line.split()[:2] == ["good", "done"] for line in shown.splitlines())
    assert not {unicodedata.category(one) for one in shown.replace("\n", "")} & {"Cc", "Cf", "Cs"}


def test_a_damaged_record_is_named_with_the_reason(tmp_path):
    """Each run still has its row in the list."""
    write(tmp_path / "odd", {"config.yaml": "", "job.json": {**leader(), "pid": None}})
    run_folder(tmp_path, "[b]", leader(), {"code": 1, "message": "KeyError: '[/x]' :smile:"})
    run_folder(tmp_path, "deep", leader(), "[" * 100_000)
    code, out, err = jobs(tmp_path, "list")
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert (code, err) == (0, "")
    assert rows["[b]"].endswith("  KeyError: '[/x]' :smile:")
    assert rows["odd"].split()[1] == "unreadable"
    assert f"  {tmp_path}/odd/job.json is unreadable: 'pid'" in rows["odd"]
    assert rows["deep"].split()[1] == "running"
    code, out, err = jobs(tmp_path, "status", "deep")
    assert (code, err) == (0, "")
    assert f"{tmp_path}/deep/exit.json is unreadable: " in out


def test_the_output_of_each_attempt_is_shown(tmp_path):
    folder = run_folder(tmp_path, "a", end={"code": 1, "message": ""})
    agent = {"node": "node1", "ranks": [1]}
    for place, text in ((folder / "attempts" / "0", "first\n"), (folder, "second\n")):
        files = {"workers/rank_00001.err": text, "agents/node_00000.json": agent}
        write(place, files)
    for flags, text in (([], "second"), (["--attempt", "1"], "first"), (["--attempt=2"], "second")):
        assert jobs(tmp_path, "logs", "a", *flags, "--rank", "1")[2] == f"node1.1| {text}\n"
    code, _, err = jobs(tmp_path, "logs", "a", "--attempt", "0")
    assert code == 2 and err.startswith("error: --attempt 0")


@pytest.mark.parametrize("words", [["logs", "-f"], ["list", "--json"], ["status"]])
def test_output_that_is_only_read_at_its_head_is_no_error(tmp_path, words):
    line = f"{'x' * 100}\n"
    write(tmp_path / "long", {"config.yaml": "", "workers/rank_00000.out": line * 20_000})
    message = "y " * 100_000
    write(tmp_path / "long", {"exit.json": {"code": 1, "message": message}})
    buffered = {"PYTHONUNBUFFERED": ""}  # without a buffer, Python itself silently loses a part
    process = begin(sys.executable, JOBS, "--logs-dir", tmp_path, *words, env=buffered)
    with ended(process):
        assert process.stdout.read(10)
        process.stdout.close()
        assert (process.stderr.read(), process.wait(300)) == ("", 141)
