"""A user's program is followed, stopped and restarted as Muster's own; its failure is explained."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

from muster.errors import STOPPED
from tests.commands import call, cause_in
from tests.fork_server import skip_if_quick
from tests.launch.scripts import ready_workers
from tests.launch.submit import JOBS, SUBMIT, alive, only_run, run_well, start, submit, wait_until
from tests.written import executable

LOCAL = ["--launcher", "local"]


def python_for(workers: str) -> str | None:
    """Return a new Python for preload: the process that does the imports passes descriptors on."""
    return sys.executable if workers == "preload" else None


@pytest.mark.parametrize(
    "workers",
    ["torchrun", pytest.param("accelerate", marks=pytest.mark.slow)],
)
def test_a_ddp_script_meets_itself_and_is_found_from_anywhere(project, workers):
    flags = [*LOCAL, "--nodes", "2", "--nproc-per-node", "2", "--workers", workers]
    out = run_well(*flags, "--", "train.py", "--lr", "1e-3", cwd=project)
    assert "rank 0 of 4: step 2" in out
    run_dir = only_run(project / "logs")
    assert [*(project / "logs").iterdir()] == [run_dir]
    assert re.fullmatch(r"\d{8}-\d{6}-train-2x2", run_dir.name)
    ranks = sorted(json.loads(path.read_text())["rank"] for path in run_dir.glob("exits/*.json"))
    assert ranks == [0, 1, 2, 3]
    done = call(sys.executable, JOBS, "status", run_dir.name, cwd="/")
    assert done.stdout.startswith(f"{run_dir.name}: done"), done.stderr
    assert alive(project) == []


def test_the_first_failure_is_the_last_thing_one_sees(project):
    flags = [*LOCAL, "--nodes", "2", "--nproc-per-node", "2"]
    words = [*flags, "--", "train.py", "--lr", "1e-3", "--fail", "2"]
    code, _, err = submit(*words, cwd=project)
    assert code == 1
    assert cause_in(err) == "ValueError: sample 17 is empty"
    assert err.count("Traceback") == 1  # not those of the other ranks
    run_id = only_run(project / "logs").name
    assert err.splitlines()[-1] == f"all of its output: muster jobs logs {run_id} --rank 2"

    assert re.search(r"error: rank 2 on \S+ failed first, at [\d:]{8}\b", err)
    end = json.loads((only_run(project / "logs") / "exit.json").read_text())
    assert end["message"].endswith("ValueError: sample 17 is empty")
    assert f'File "{project}/train.py", line ' in end["message"]
    assert "preload.py" not in end["message"] and "worker_main.py" not in end["message"]
    assert alive(project) == []


# How rank 3 ends while the others go on. It records an exception; its starter reports other ends.
GOES_ON = "\nelse: time.sleep(10_000)"
EXITS = f"ctypes.CDLL(None)._exit(3){GOES_ON}"
KILLED = f"os.kill(os.getpid(), 9){GOES_ON}"
ABORTED = "rank 3 on node1 died: Aborted; its program"
SLOW = pytest.mark.slow
ENDS = [
    ("manual", "ctypes.string_at(0)", 139, "rank 3 on node1 died: Segmentation fault$"),
    pytest.param("manual", "atexit.register(os.abort)", 134, ABORTED, marks=SLOW),
    ("torchrun", EXITS, 3, r"error: rank 3 on \S+: exit code 3$"),
    pytest.param("torchrun", KILLED, 137, "rank 3 on node1 was killed by SIGKILL$", marks=SLOW),
    pytest.param("preload", EXITS, 3, r"error: rank 3 on \S+: exit code 3$", marks=SLOW),
]


@pytest.mark.parametrize(("workers", "ending", "code", "last"), ENDS)
def test_end_of_a_rank_is_named_with_code_or_signal(project, workers, ending, code, last):
    first = "import atexit, ctypes, os, time\nif os.environ['RANK'] == '3': "
    (project / "other.py").write_text(first + ending)
    flags = [*LOCAL, "--nodes", "2", "--nproc-per-node", "2", "--workers", workers]
    began = time.time()
    found, _, err = submit(*flags, "--", "other.py", cwd=project, python=python_for(workers))
    assert found == code and re.search(last, cause_in(err)), err
    assert "worker_main" not in err
    end = json.loads((only_run(project / "logs") / "exit.json").read_text())["end"]
    assert end["rank"] == 3 and began < end["time_unix_s"] < time.time()


UNTOLD = {
    "exec": "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'pass'])",
    "_exit": "import ctypes\nctypes.CDLL(None)._exit(0)",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workers"),
    [
        ("exec", "manual"),
        ("_exit", "torchrun"),
    ],
)
def test_a_rank_that_ended_well_without_saying_so_is_done(project, how, workers):
    (project / "other.py").write_text(UNTOLD[how])
    flags = [*LOCAL, "--nodes", "2", "--workers", workers]
    run_well(*flags, "--", "other.py", cwd=project, python=python_for(workers))
    records = [
        json.loads(path.read_text()) for path in only_run(project / "logs").glob("exits/*.json")
    ]
    assert [record["cause"] for record in records] == ["done", "done"]


@pytest.mark.slow
def test_our_own_trainer_starts_where_no_folder_is_on_the_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    flags = ["--task", "synthetic", "--max-steps", "2", "--evaluate", "never", "--threads", "1"]
    out = run_well(*LOCAL, *flags, "--logs-dir", str(tmp_path), python=sys.executable)
    assert "step 2  loss" in out


def test_a_program_without_torch(project):
    text = '#!/bin/sh\necho "rank $RANK of $WORLD_SIZE: $1 $PWD"\n'
    executable(project / "hello.sh", text)
    flags = [*LOCAL, "--nodes", "3", "--workers", "manual"]
    out = run_well(*flags, "--", "./hello.sh", "a b", cwd=project)
    assert f"rank 0 of 3: a b {project}\n" in out
    outputs = only_run(project / "logs").glob("workers/*.out")
    assert len({path.read_text() for path in outputs}) == 3


@pytest.mark.slow
def test_run_leaves_no_file_or_process_to_the_garbage_collector(project):
    words = [*LOCAL, "--nodes", "2", "--workers", "manual", "--", "sh", "-c", "exit $RANK"]
    done = call(sys.executable, SUBMIT, *words, cwd=project, env={"PYTHONWARNINGS": "always"})
    assert done.returncode == 1, done.stderr
    errors = [*only_run(project / "logs").glob("agents/*.err")]
    assert len(errors) == 2
    for text in (done.stderr, *(path.read_text() for path in errors)):
        assert "Warning" not in text


STOPS = """
import os, sys, time
from pathlib import Path
import muster
state = Path(os.environ["MUSTER_CHECKPOINTS"], f"state_{os.environ['RANK']}")
step = int(state.read_text()) if state.exists() else 0
muster.stopping()  # from now on
print("from step", step, flush=True)
while not step or (step < 10_000 and not muster.stopping()):
    step += 1
    time.sleep(0.02)
state.parent.mkdir(parents=True, exist_ok=True)
state.write_text(str(step))
sys.exit(75)
"""


def test_a_program_stops_in_order_and_finds_its_checkpoint_again(project):
    (project / "stops.py").write_text(STOPS)
    flags = [*LOCAL, "--nodes", "2", "--workers", "manual", "--checkpoint-dir", "kept"]
    for attempt in range(2):
        words = [*flags, "--run-id", f"run{attempt}", "--", "stops.py"]
        process = start(*words, cwd=project)  # a program is asked to stop by its process's number
        wait_until(lambda begun=2 * (attempt + 1): len(ready_workers(project)) == begun)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == STOPPED
        output = project / "logs" / f"run{attempt}" / "workers" / "rank_00001.out"
        assert (int(output.read_text().split()[2]) > 0) == (attempt == 1)


@pytest.mark.slow
def test_output_may_be_closed(project):
    """For example, a service may start a command without output: `command >&- 2>&-`."""
    (project / "run.py").write_text("print('hello')")
    words = [sys.executable, SUBMIT, *LOCAL, "--workers", "manual", "--run-id", "a", "--", "run.py"]
    skip_if_quick()
    closed = ["bash", "-c", '"$@" <&- >&- 2>"$0"', str(project / "stderr"), *words]
    code = subprocess.run(closed, cwd=project, check=False, timeout=300).returncode
    assert code == 0, (project / "stderr").read_text()
    assert (project / "logs" / "a" / "workers" / "rank_00000.out").read_text() == "hello\n"


# Like a `Trainer` or `PartialState` that does not notice that there are several workers.
ALONE = """
import sys, torch, torch.distributed as dist
if sys.argv[1] == "meets":
    dist.init_process_group("gloo")
    dist.barrier()  # else one may leave while the other still connects
    dist.destroy_process_group()
elif sys.argv[1] == "fails":
    sys.exit(3)
print(torch.ones(2).sum())
"""
EACH_ALONE = "none of the 2 workers created a process group: each ran alone\n"


@pytest.mark.parametrize(
    ("flags", "how", "line"),
    [
        (["--nproc-per-node", "2"], "alone", EACH_ALONE),
        pytest.param(["--nproc-per-node", "2"], "meets", "", marks=pytest.mark.slow),
        pytest.param([], "alone", "", marks=pytest.mark.slow),
        pytest.param(["--nproc-per-node", "2"], "fails", "", marks=pytest.mark.slow),
    ],
)
def test_workers_that_have_not_met_are_said_to_have_run_alone(project, flags, how, line):
    (project / "alone.py").write_text(ALONE)
    python = python_for("preload") if "preload" in flags else None
    code, _, err = submit(*LOCAL, *flags, "--", "alone.py", how, cwd=project, python=python)
    assert code == (3 if how == "fails" else 0), err
    assert line in err and ("each ran alone" in err) == bool(line)
