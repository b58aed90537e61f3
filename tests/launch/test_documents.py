"""With `--json`, only documents are printed to stdout, and a program can act on them."""

import json
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launch.ends import OUT_OF_MEMORY, STATES
from launch.runs import waiting
from muster import errors, json_output
from muster.checkout import CHECKOUT
from muster.command import COMMANDS
from muster.terminal import in_one_line
from tests.commands import begin, call, finish
from tests.environments import paced_python
from tests.fork_server import interpreter, skip_if_quick
from tests.launch.run_folders import jobs, leader, run_folder
from tests.launch.submit import JOBS, alive, recovery_s, wait_until
from tests.written import write

PAGE = (CHECKOUT / "docs" / "automation.md").read_text(encoding="utf-8")
PROGRAM = CHECKOUT / "docs" / "try_again.py"
LOCAL = ["--launcher", "local", "--workers", "manual"]
PACED = ["--task", "paced", "--epochs", "1000000", "--threads", "1"]
# Its first attempt loses a worker, and its second succeeds.
FRAIL = """
import os, signal, time
from pathlib import Path
saved = Path(os.environ["MUSTER_CHECKPOINTS"], "state")
print("a line of", os.environ["RANK"], saved.exists(), flush=True)
if os.environ["MUSTER_ATTEMPT"] == "0" and os.environ["RANK"] == "1":
    saved.parent.mkdir(exist_ok=True)
    saved.touch()
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0 if os.environ["MUSTER_ATTEMPT"] == "1" else 600)
"""
# It needs 64 MiB for each sample of a batch, and may use 28 times as much.
HUNGRY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (28 * 2**26, -1))
data = bytearray(int(sys.argv[-1]) * 2**26)
"""


def muster(*words, cwd="/", python=sys.executable) -> tuple[int, list[dict], str]:
    """Run a command, and return its exit code, documents and stderr."""
    first, *more = COMMANDS[words[0]]
    done = call(python, CHECKOUT / first, *more, *words[1:], cwd=cwd, timeout_s=600)
    return done.returncode, documents(done.stdout), done.stderr


def documents(text: str) -> list[dict]:
    found = [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]
    assert all(one["muster"] == json_output.VERSION and one["kind"] for one in found)
    return found


def kinds(found) -> list[str]:
    return [one["kind"] for one in found]


@pytest.fixture
def logs(tmp_path):
    run_folder(tmp_path, "20260101-one", leader(), {"code": 3, "message": "x\nboom", "rank": 1})
    run = run_folder(tmp_path, "20260102-two", leader(), {"code": 0, "message": ""})
    step = '{"kind": "step", "step": 7, "epoch": 1, "loss": NaN, "step_s": 0.5}\n'
    output = b"loss nan\n\xff\n"
    write(run, {"workers/rank_00000.out": output, "metrics/rank_00000.jsonl": step})
    return tmp_path


def test_each_way_to_look_at_runs_prints_documents_alone(logs):
    def documented(verb, *words) -> tuple[int, list[dict], str]:
        return muster("jobs", "--logs-dir", logs, verb, *words, "--json")

    code, (found,), _ = documented("list")
    assert code == 0 and found["kind"] == "runs"
    assert [one["run_id"] for one in found["runs"]] == ["20260102-two", "20260101-one"]
    states = [(one["word"], one["over"]) for one in found["runs"]]
    assert states == [("done", True), ("failed", True)]
    code, (found,), _ = documented("status", "20260102")
    assert code == 0 and found["kind"] == "run" and found["end"]["cause"] == "done"
    assert found["step"]["step"] == 7 and found["step"]["loss"] is None
    code, (found,), _ = documented("status", "20260101")
    end = {"exit_code": 3, "cause": "failed", "message": "x\nboom", "rank": 1, "output": ""}
    assert found["end"] == end
    code, found, _ = documented("logs", "20260102")
    assert code == 0 and [one["text"] for one in found] == ["loss nan", "\ufffd"]
    assert {(one["kind"], one["rank"], one["stream"]) for one in found} == {("output", 0, "stdout")}
    code, (found,), err = documented("cancel", "20260102")
    assert code == 0 and found["word"] == "done" and "already ended" in err
    code, (found,), err = documented("stacks", "20260102")
    assert code == 1 and found["cause"] == "failed" and f"error: {found['message']}" in err
    code, found, err = documented("wait", "20260102", "--for", "1m")
    assert code == 0 and kinds(found) == ["step", "ended"] and found[-1]["exit_code"] == 0


@pytest.mark.parametrize("words", [
    ["jobs", "status", "nope"], ["jobs", "nope"], ["jobs", "wait", "--for", "soon"],
    ["run", "--lr"], ["run", "--nodes", "0", "--", "train.py"], ["sweep", "--over", "lr"],
    ["study"], ["doctor", "--detach"], ["doctor", "--dry-run"],
])  # fmt: skip
def test_refusal_is_a_json_document(words, logs):
    where = ["--logs-dir", logs] if words[0] == "jobs" else []
    python = interpreter(for_workers=False)
    code, (found,), err = muster(words[0], *where, "--json", *words[1:], python=python)
    last = found["message"].splitlines()[-1]
    assert code == 2 and in_one_line(err).endswith(f"error: {last}\n")
    assert (found["kind"], found["cause"], found["exit_code"]) == ("error", "refused", 2)


@pytest.mark.needs("ip")
def test_plans_and_checks_are_documents(tmp_path):
    (tmp_path / "train.py").touch()
    code, (found,), err = muster("run", *LOCAL, "--nodes", "2", "--dry-run", "--json")
    assert code == 0 and found["kind"] == "plan" and len(found["nodes"]) == 2 and "worker" in err
    words = ["--over", "lr=1,2", "--dry-run", "--json", "--", "train.py"]
    code, (found,), _ = muster("sweep", *words, cwd=tmp_path)
    assert code == 0 and found["kind"] == "plan" and len(found["commands"]) == 2
    code, (found,), err = muster("doctor", "--launcher", "local", "--quick", "--json")
    assert code == found["exit_code"] == 0 and "every pair" in err and found["network"] is None
    assert {"every pair", "disk"} & {one["check"] for one in found["checks"]}


@pytest.mark.slow
def test_a_sweep_tells_of_each_run_as_a_study_does(tmp_path):
    skip_if_quick()
    (tmp_path / "t.py").write_text("import sys; print('a line'); sys.exit(int(sys.argv[-1]))\n")
    words = ["--over", "code=0,7", *LOCAL, "--json", "--", "t.py"]
    code, found, err = muster("sweep", *words, cwd=tmp_path, python=interpreter())
    assert code == found[-1]["exit_code"] == 1, err
    assert kinds(found) == ["cell"] * 4 + ["cells"]
    states = [(one["settings"]["code"], one["state"]) for one in found[:-1]]
    assert states == [("0", "running"), ("0", "done"), ("7", "running"), ("7", "failed")]
    assert [one["state"] for one in found[-1]["cells"]] == ["done", "failed"]
    assert Path(found[-1]["folder"], "sweep.json").exists() and "1 of 2" in err


@pytest.mark.needs("ssh")
def test_a_node_that_fails_a_check_is_in_the_document(tmp_path):
    words = ["--launcher", "ssh", "--hosts", "none.invalid", "--quick", "--json"]
    code, (found,), err = muster("doctor", *words)
    assert code == found["exit_code"] == 1 and "1 check failed" in err and found["network"] is None
    (bad,) = (one for one in found["checks"] if one["verdict"] != "ok")
    assert bad["found"] == ["none.invalid: host name not found"] and bad["fix"]


def test_a_run_that_loses_a_worker_tells_of_its_restart(tmp_path):
    skip_if_quick()
    (tmp_path / "frail.py").write_text(FRAIL)
    words = ["--nodes", "2", "--max-restarts", "1", "--json", "--", "frail.py"]
    code, found, err = muster("run", *LOCAL, *words, cwd=tmp_path, python=interpreter())
    assert code == 0 and "a line of 0 True" in err
    assert "attempt 2 of at most 2: starting again on 2 nodes" in err
    order = [one for one in kinds(found) if one != "started"]
    assert order == ["submitted", "restart", "ended"], err
    restart, ended = found[kinds(found).index("restart")], found[-1]
    assert restart["attempt"] == 1 and restart["after"]["exit_code"] == 137
    assert restart["after"]["cause"] == "killed" and "SIGKILL" in restart["after"]["message"]
    assert (ended["exit_code"], ended["cause"]) == (0, "done")
    started = [one for one in found if one["kind"] == "started" and one["attempt"] == 1]
    assert sorted(rank for node in started[0]["nodes"] for rank in node["ranks"]) == [0, 1]
    assert recovery_s(err, Path(ended["run_dir"]), "first output") > 0
    assert alive(tmp_path) == []


@contextmanager
def endless_run(logs: Path) -> Iterator[Path]:
    """The folder of a run of two workers that goes on until it is cancelled."""
    skip_if_quick()
    flags = [*LOCAL, "--nodes", "2", *PACED, "--detach", "--json", "--logs-dir", logs]
    code, found, err = muster("run", *flags, python=str(paced_python(logs / "env")))
    assert code == 0 and kinds(found) == ["submitted"], err
    run_dir = logs / found[0]["run_id"]
    assert f"muster jobs cancel {run_dir.name}" in err
    wait_until((run_dir / "metrics" / "rank_00000.jsonl").exists)
    yield run_dir
    jobs(logs, "cancel")
    wait_until(lambda: alive(logs) == [])


@pytest.fixture(scope="module")
def endless_run_dir(tmp_path_factory) -> Iterator[Path]:
    with endless_run(tmp_path_factory.mktemp("endless")) as run_dir:
        yield run_dir


@pytest.mark.slow
def test_output_of_a_detached_run_is_shown_by_rank(endless_run_dir):
    logs = endless_run_dir.parent
    code, out, _ = jobs(logs, "status")
    assert code == 0 and out.startswith(f"{endless_run_dir.name}: running (led by process")
    assert "node1: 127.0.0.1 on lo, rank 1" in out
    wait_until(lambda: "node0.0| step 1  loss" in jobs(logs, "logs")[1])
    assert jobs(logs, "logs", "--rank", "1")[:2] == (0, "")
    code, _, err = jobs(logs, "logs", "--rank", "99")
    assert code == 2 and "--rank 99: " in err and " has ranks 0 to 1" in err


@pytest.mark.slow
def test_interrupted_wait_leaves_the_run(endless_run_dir):
    where = ["--logs-dir", endless_run_dir.parent]
    run = endless_run_dir.name
    code, found, err = muster("jobs", *where, "wait", run, "--for", "3s", "--json")
    assert code == 124 and found[-1]["kind"] == "time_over" and ": running" in err
    assert "step" in kinds(found) and found[-1]["step"]["step"] > 0
    waiter = begin(sys.executable, JOBS, *where, "wait", run, "--json")
    assert waiter.stdout is not None and documents(waiter.stdout.readline())
    waiter.send_signal(signal.SIGINT)
    code, out, err = finish(waiter)
    assert code == 130 and "to end it: " in err
    assert documents(out)[-1]["cause"] == "signal"
    assert muster("jobs", *where, "status", run, "--json")[1][0]["word"] == "running"


@pytest.mark.slow
def test_a_detached_run_is_cancelled(tmp_path):
    logs, where = tmp_path, ["--logs-dir", tmp_path]
    with endless_run(logs) as run_dir:
        run = run_dir.name
        code, found, _ = muster("jobs", *where, "cancel", run, "--json")
    end = found[0]["end"]
    assert code == 0 and found[0]["word"] == "stopped" and end["cause"] in ("stopped", "signal")
    code, found, _ = muster("jobs", *where, "wait", run, "--json")
    assert code == end["exit_code"] and found[-1]["kind"] == "ended"
    assert found[-1].items() >= end.items()
    assert "already ended: stopped" in jobs(logs, "cancel")[1]
    assert jobs(logs, "logs", "-f")[0] == 0


def test_between_two_attempts_a_run_has_not_ended(tmp_path):
    run = run_folder(tmp_path, "a", leader(), {"code": 137, "message": "lost"})
    argv = [sys.executable, JOBS, "--logs-dir", tmp_path, "wait", "--for", "3s"]
    assert call(*argv).returncode == 124  # its leader lives
    (run / "job.json").write_text(json.dumps(leader(started_unix_s=1.0)))
    assert call(*argv[:-1], "10m").returncode == 137


@pytest.mark.slow
def test_the_program_of_the_page_finds_the_batch_that_fits(tmp_path):
    skip_if_quick()
    (tmp_path / "train.py").write_text(HUNGRY)
    done = call(sys.executable, PROGRAM, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    size = int(re.findall(r"done with batches of (\d+): ", done.stdout)[0])
    assert size in (8, 16)
    ends = [json.loads(one.read_text()) for one in tmp_path.glob("logs/*/exit.json")]
    assert sorted(one["cause"] for one in ends) == ["done", *[OUT_OF_MEMORY] * (len(ends) - 1)]
    assert len(ends) == 8 - size.bit_length()
    assert f"```python\n{PROGRAM.read_text()}```" in PAGE


def test_the_page_has_every_cause_and_exit_code():
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE.partition("## Why it ended")[2], re.M))
    by_code = {*errors.NAMES.values(), "signal"}
    assert rows.keys() == by_code | {*STATES, OUT_OF_MEMORY}
    assert {int(code): name for name, code in rows.items() if name in errors.NAMES.values()} == (
        errors.NAMES
    )
    assert errors.name_of(130) == "signal" and errors.name_of(7) == "failed"


def test_times_are_read_as_people_write_them():
    given = {"90": 90, "90s": 90, "30m": 1800, "2h": 7200, "1.5d": 129_600}
    assert {text: waiting.seconds(text) for text in given} == given
    for text in ("", "soon", "2 h", "-1", "1h30m"):
        with pytest.raises(errors.UsageError, match="a time such as"):
            waiting.seconds(text)
