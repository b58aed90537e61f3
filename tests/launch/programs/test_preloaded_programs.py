"""`--workers preload`: workers that share one import start, fail and end as torchrun's do."""

import json
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from muster.errors import STOPPED
from tests.commands import cause_in
from tests.launch.scripts import DDP, ready_workers
from tests.launch.submit import alive, run_well, start, submit, wait_until, worker

LOCAL = ["--launcher", "local", "--workers", "preload"]
SHAPE = ["--nodes", "2", "--nproc-per-node", "2"]
ENDS = [
    ("preload", signal.SIGINT, "starting"),
    ("torchrun", signal.SIGKILL, "training"),
]

ENDLESS = ["--", "train.py", "--lr", "1e-3", "--steps", "100000"]


def run_in_new_python(project: Path, *words: str) -> str:
    """Use a Python that is not forked, for tests that depend on the workers' parent process."""
    return run_well(*words, cwd=project, python=sys.executable)


@pytest.mark.slow
def test_workers_have_what_was_named_and_no_other_module_of_theirs(project):
    show = "\nimport os, sys\nbefore = sorted({'torch', 'configs', 'decimal'} & set(sys.modules))\n"
    (project / "train.py").write_text(show + "print(os.getppid(), before)" + DDP)
    for flags, known in (((), "['torch']"), (("--preload", "decimal"), "['decimal']")):
        out = run_in_new_python(project, *LOCAL, *SHAPE, *flags, "--", "train.py", "--lr", "1e-3")
        assert "rank 0 of 4: step 2" in out
        assert re.findall(r"\[.*\]", out)[0] == known
    assert alive(project) == []


@pytest.mark.slow
def test_killed_starter_ends_preloaded_run(project):
    process = start(*LOCAL, *SHAPE, "--preload", "torch", *ENDLESS, cwd=project)
    wait_until(lambda: len(ready_workers(project)) == 4)
    starter = worker(process, 2).parent()
    assert starter in psutil.Process(process.pid).children(recursive=True)
    starter.kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode in (1, 137), err
    wait_until(lambda: alive(project) == [])
    last = cause_in(err)
    assert "ended without a message" in last or "preload on" in last, err


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "number", "moment"), ENDS)
def test_nothing_outlives_the_launcher(project, workers, number, moment):
    flags = ["--launcher", "local", "--workers", workers, *SHAPE, *ENDLESS]
    process = start(*flags, cwd=project)
    if moment == "training":
        wait_until(lambda: len(ready_workers(project)) == 4)
    else:
        below = psutil.Process(process.pid).children
        wait_until(lambda: any(map(_has_begun, below(recursive=True))))
    process.send_signal(number)
    _, err = process.communicate(timeout=300)
    wait_until(lambda: alive(project) == [])
    if number == signal.SIGINT:
        assert process.returncode == 130 and err.endswith("error: stopped by SIGINT\n")


def _has_begun(process: psutil.Process) -> bool:
    """Whether the process is a worker, or imports for all workers of a node."""
    try:
        line = " ".join(process.cmdline())
        return "muster/worker/" in line and "torch.distributed.run" not in line
    except psutil.Error:
        return False


STOPS = """
import os, sys, time
import muster
muster.stopping()
print("runs", flush=True)
while not muster.stopping(): time.sleep(0.02)
sys.exit(75)
"""

CATCHES = """
import os, signal, sys, time
def end(number, frame): open(f"ended_{os.environ['RANK']}", "a").write("once\\n"); sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("runs", flush=True)
while True: time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "ended"), [(STOPS, []), (CATCHES, ["once\n"] * 4)])
def test_workers_stop_in_order_and_are_sent_sigterm_once(project, program, ended):
    (project / "train.py").write_text(program)
    process = start(*LOCAL, *SHAPE, "--", "train.py", cwd=project)
    wait_until(lambda: len(ready_workers(project)) == 4)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == STOPPED or ended
    assert [path.read_text() for path in project.glob("ended_*")] == ended
    assert alive(project) == []


@pytest.mark.slow
def test_preloaded_workers_have_variables_of_prologue(project):
    """Libraries may read the environment, which a prologue sets, when they are imported."""
    text = "import os\nprint(os.environ['MINE'], os.environ['RANK'])"
    (project / "train.py").write_text(text)
    (project / "prologue.sh").write_text("export MINE=yes")
    flags = [*LOCAL, *SHAPE, "--prologue", "prologue.sh"]
    assert run_in_new_python(project, *flags, "--", "train.py").splitlines()[-1] == "yes 0"


@pytest.mark.slow
def test_our_own_trainer_computes_what_it_does_under_torchrun(tmp_path):
    flags = ["--nodes", "2", "--task=synthetic", "--max-steps=10", f"--logs-dir={tmp_path}/logs"]
    losses = []
    for number, own in enumerate([LOCAL, ["--launcher", "local"]]):
        one = [*own, *flags, f"--run-id=run{number}"]
        code, _, err = submit(*one, cwd=tmp_path, python=sys.executable)
        assert code == 0 and "note: --preload" not in err, err
        lines = (tmp_path / "logs" / f"run{number}" / "metrics" / "rank_00000.jsonl").read_text()
        losses.append([one.get("loss") for one in map(json.loads, lines.splitlines())])
    assert losses[0] == losses[1]


RESTARTS = """
import os, signal
import counted
attempt, rank = os.environ["MUSTER_ATTEMPT"], os.environ["RANK"]
open(f"above_{attempt}_{rank}", "w").write(str(os.getppid()))
if (attempt, rank) == ("0", "1"):
    os.kill(os.getpid(), signal.SIGKILL)
if attempt == "0":
    signal.pause()
print("attempt", attempt, "of rank", rank)
"""


def test_a_restart_imports_nothing_again(project, tmp_path, monkeypatch):
    """The process that did the imports stays, and forks the workers of the next attempt."""
    (project / "train.py").write_text(RESTARTS)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "counted.py").write_text("open('imports', 'a').write('once\\n')\n")
    flags = [*LOCAL, "--nproc-per-node", "2", "--preload", "counted", "--max-restarts", "1"]
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    code, out, err = submit(*flags, "--", "train.py", cwd=project, python=sys.executable)
    assert code == 0 and "attempt 1 of rank 0" in out, err
    assert "rank 1 on node0 was killed by SIGKILL" in err
    (above,) = {path.read_text() for path in project.rglob("above_*")}
    assert not psutil.pid_exists(int(above)) and alive(project) == []
    assert [path.read_text() for path in project.rglob("imports")] == ["once\n"]
