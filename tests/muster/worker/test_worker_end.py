"""However a program ends, its exit code and traceback are its own, and its record shows how."""

import signal
import subprocess

import pytest

from tests.muster.worker.shims import ended, run

FORK = "import os, sys\nif os.fork() == 0:\n"


@pytest.mark.parametrize(
    ("text", "code", "cause"),
    [
        ("pass", 0, "done"),
        ("import sys; sys.exit()", 0, "done"),
        ("import sys; sys.exit(3)", 3, "exit"),
        ("import sys; sys.exit('no data')", 1, "exit"),
        ("import sys; sys.exit(75)", 75, "stopped"),
        ("import os; os._exit(0)", 0, "done"),
        ("import os; os._exit(4)", 4, "exit"),
        ("import os\nif os.fork() == 0: os._exit(9)\nos.wait()", 0, "done"),
        ("import os\nos.environ.clear()", 0, "done"),
        ("import os\nos.environ.clear()\n1 / 0", 1, "crash"),
        (FORK + "    sys.exit(3)\nos.wait()", 0, "done"),
        (FORK + "    1 / 0\nos.wait()", 0, "done"),
        (FORK + "    sys.exit(75)\nos.wait()", 0, "done"),
        (FORK + "    sys.exit(0)\nos.wait()\nraise ValueError", 1, "crash"),
        (FORK + "    pass\nelse:\n    os.wait()\n    sys.exit(5)", 5, "exit"),
        ("raise ValueError('bad sample')", 1, "crash"),
        ("def f(:", 1, "crash"),
    ],
)
def test_exit_code_and_record_of_a_program(tmp_path, text, code, cause):
    (tmp_path / "train.py").write_text(text)
    run_dir = tmp_path / "run"
    done = run(tmp_path, "train.py", MUSTER_RUN_DIR=str(run_dir))
    assert done.returncode == run(tmp_path, "train.py", through=False).returncode == code
    record = ended(run_dir)
    assert (record["code"], record["cause"]) == (code, cause)
    assert "worker_main" not in record["traceback"]
    assert (run_dir / "workers" / "rank_00000.out").exists() and not done.stdout
    assert (run_dir / "stopped.json").exists() == (cause == "stopped")


def test_a_traceback_is_the_programs_own(tmp_path):
    (tmp_path / "train.py").write_text("import helper\nhelper.fail()")
    (tmp_path / "helper.py").write_text("def fail(): raise KeyError('x')")
    with_us, plain = (run(tmp_path, "train.py", through=through) for through in (True, False))
    assert with_us.stderr == plain.stderr and with_us.returncode == plain.returncode == 1


UNSPEAKABLE = """
from dataclasses import dataclass
class Mute(RuntimeError):
    def __str__(self): raise ValueError("no text")
@dataclass(frozen=True)
class Frozen(Exception):
    sample: int
class Hidden(Exception):
    def __getattr__(self, name): raise ValueError(name)
"""


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("Mute()", "Mute: <exception str() failed>"),
        ("Frozen(17)", "Frozen: 17"),
        ("Hidden()", "Hidden"),
    ],
)
def test_exception_without_readable_text_is_recorded_as_crash(tmp_path, error, message):
    (tmp_path / "train.py").write_text(f"{UNSPEAKABLE}raise {error}")
    done = run(tmp_path, "train.py", MUSTER_RUN_DIR=str(tmp_path / "run"))
    record = ended(tmp_path / "run")
    assert (done.returncode, record["code"], record["cause"]) == (1, 1, "crash")
    assert record["message"].startswith(message)
    assert 'train.py", line ' in record["traceback"]
    assert "worker_main" not in record["traceback"]


def test_a_segmentation_fault_says_where(tmp_path):
    (tmp_path / "train.py").write_text("import ctypes\nctypes.string_at(0)")
    run_dir = tmp_path / "run"
    done = run(tmp_path, "train.py", MUSTER_RUN_DIR=str(run_dir), RANK="2")
    assert done.returncode == -signal.SIGSEGV
    text = (run_dir / "workers" / "rank_00002.err").read_text()
    assert "Segmentation fault" in text and "train.py" in text and "line 2" in text


def test_a_worker_whose_agent_is_gone_ends(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert run(tmp_path, "train.py", MUSTER_AGENT_PID=str(gone.pid)).returncode == 128 + 9


# gloo's threads run only while the other threads of this processor sleep, so the last collective's
# thread has not released the collective when the program is finished.
LATE_THREADS = """
import os, sys, torch, torch.distributed as dist
sys.modules["_muster.gloo_threads"].LIMIT_S = 250  # beside busy processes they run late
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
torch.optim.SGD(model.parameters(), lr=1e-3).step()
for task in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(task, {min(os.sched_getaffinity(0))})
    if task != os.getpid():
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
dist.all_reduce(torch.ones(1000))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "code"),
    [("dist.destroy_process_group()", 0), ("pass", 0), ("sys.exit(3)", 3)],
)
def test_threads_of_gloo_end_before_the_interpreter(tmp_path, end, code):
    """Otherwise, three in four of these runs end with SIGABRT, also with plain Python."""
    (tmp_path / "train.py").write_text(LATE_THREADS + end)
    done = run(tmp_path, "train.py")
    assert done.returncode == code, done.stderr
