"""A program finds everything as with plain python, and leaves how it ended in the run folder."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import vermin

from muster import run_files
from tests.train.workers import own_output

WORKER_MAIN = Path(__file__).parents[3] / "muster" / "worker" / "worker_main.py"
SHOW = """
import json, os, pickle, sys
class Thing: pass
import helper, configs, launch
assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
assert sys.modules["__main__"].Thing is Thing
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "path": [one for one in sys.path if not one.endswith("muster/on_path")],
    "tmpdir": os.environ.get("TMPDIR"), "helper": helper.__file__, "package": __package__,
    "configs": configs.__file__, "launch": launch.__file__,
}))
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A folder with the names that this repository has, too."""
    root = tmp_path / "a project"
    for name in ("configs", "launch", "package"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
    (root / "helper.py").touch()
    (root / "train.py").write_text(SHOW)
    (root / "package" / "module.py").write_text(SHOW)
    (root / "package" / "__main__.py").write_text(SHOW)
    return root


def run(project: Path, *words: str, through: bool = True, **env: str):
    shim = [str(WORKER_MAIN)] if through else []
    return subprocess.run(
        [sys.executable, *shim, *words],
        cwd=project, env={**os.environ, **env}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def ended(run_dir: Path, rank: int = 0) -> dict:
    return json.loads((run_dir / "exits" / f"rank_{rank:05d}.json").read_text())


ENVIRONMENTS = {
    "plain": {},
    "PYTHONPATH=.": {"PYTHONPATH": "."},
    "PYTHONSAFEPATH=1": {"PYTHONPATH": ".:/nowhere", "PYTHONSAFEPATH": "1"},
}


@pytest.mark.parametrize("env", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
@pytest.mark.parametrize(
    "words",
    [
        ["train.py", "--lr", "1e-3", "-m", "--", "a b"],
        ["./train.py"],
        ["-m", "package.module", "--x"],
        ["-m", "package", "-h"],
    ],
    ids=" ".join,
)
def test_all_is_as_with_plain_python(project, words, env):
    with_us, plain = (run(project, *words, through=through, **env) for through in (True, False))
    assert with_us.returncode == 0, with_us.stderr
    assert json.loads(with_us.stdout) == json.loads(plain.stdout)


def test_muster_is_found_and_the_users_own_comes_first(project):
    (project / "train.py").write_text("import muster; print(muster.__file__)")
    assert run(project, "train.py").stdout.strip() == str(WORKER_MAIN.parents[1] / "__init__.py")
    (project / "muster.py").touch()
    assert run(project, "train.py").stdout.strip() == str(project / "muster.py")


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
def test_how_it_ends(project, text, code, cause):
    (project / "train.py").write_text(text)
    run_dir = project / "run"
    done = run(project, "train.py", MUSTER_RUN_DIR=str(run_dir))
    assert done.returncode == run(project, "train.py", through=False).returncode == code
    record = ended(run_dir)
    assert (record["code"], record["cause"]) == (code, cause)
    assert "worker_main" not in record["traceback"]
    assert (run_dir / "workers" / "rank_00000.out").exists() and not done.stdout
    assert (run_dir / "stopped.json").exists() == (cause == "stopped")


def test_a_traceback_is_the_programs_own(project):
    (project / "train.py").write_text("import helper\nhelper.fail()")
    (project / "helper.py").write_text("def fail(): raise KeyError('x')")
    with_us, plain = (run(project, "train.py", through=through) for through in (True, False))
    assert with_us.stderr == plain.stderr and with_us.returncode == plain.returncode == 1


UNSPEAKABLE = """
from dataclasses import dataclass
class Mute(Exception):
    def __str__(self): raise ValueError("no text")
class Deaf(RuntimeError):
    def __str__(self): return None
@dataclass(frozen=True)
class Frozen(Exception):
    sample: int
class Hidden(Exception):
    def __getattr__(self, name): raise ValueError(name)
"""


# As the traceback module of this Python has it.
UNTOLD = "<unprintable {} object>" if sys.version_info < (3, 11) else "<exception str() failed>"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("Mute()", f"Mute: {UNTOLD.format('Mute')}"),
        ("Deaf()", f"Deaf: {UNTOLD.format('Deaf')}"),
        ("Frozen(17)", "Frozen: 17"),
        ("Hidden()", "Hidden"),
    ],
)
def test_an_exception_that_cannot_be_told_is_a_crash_of_its_program(project, error, message):
    (project / "train.py").write_text(f"{UNSPEAKABLE}raise {error}")
    done = run(project, "train.py", MUSTER_RUN_DIR=str(project / "run"))
    record = ended(project / "run")
    assert (done.returncode, record["code"], record["cause"]) == (1, 1, "crash")
    assert record["message"].startswith(message)
    assert 'train.py", line ' in record["traceback"]
    assert "worker_main" not in record["traceback"]


STAND_IN = """
import os, sys, types
group = types.SimpleNamespace(is_initialized=lambda: True, get_backend_config=lambda: "cpu:gloo")
group.destroy_process_group = lambda: print("left by worker:", os.getpid() == worker)
worker, sys.modules["torch.distributed"] = os.getpid(), group
"""


def test_a_forked_process_leaves_the_group_to_its_parent(project):
    (project / "train.py").write_text(STAND_IN + FORK + "    sys.exit(0)\nos.wait()")
    assert run(project, "train.py").stdout == "left by worker: True\n"


SPAWN = """
import multiprocessing
def work(answers): import muster; answers.put(muster.__file__)
if __name__ == "__main__":
    context = multiprocessing.get_context("METHOD")
    answers = context.SimpleQueue()
    process = context.Process(target=work, args=(answers,))
    process.start()
    process.join()
    print(process.exitcode, None if process.exitcode else answers.get())
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_muster_is_found_in_processes_of_a_python_that_lacks_it(project, method):
    (project / "train.py").write_text(SPAWN.replace("METHOD", method))
    done = run(project, "-S", str(WORKER_MAIN), "train.py", through=False)
    assert done.stdout.strip() == f"0 {WORKER_MAIN.parents[1] / '__init__.py'}", done.stderr


def test_a_segmentation_fault_says_where(project):
    (project / "train.py").write_text("import ctypes\nctypes.string_at(0)")
    run_dir = project / "run"
    done = run(project, "train.py", MUSTER_RUN_DIR=str(run_dir), RANK="2")
    assert done.returncode == -signal.SIGSEGV
    text = (run_dir / "workers" / "rank_00002.err").read_text()
    assert "Segmentation fault" in text and "train.py" in text and "line 2" in text


def test_another_command_takes_the_place_of_it(project):
    done = run(project, "--exec", "sh", "-c", 'echo "$RANK $1"; exit 7', "sh", "a b", RANK="3")
    assert (done.returncode, done.stdout) == (7, "3 a b\n")
    missing = run(project, "--exec", "./nothing")
    assert missing.returncode == 127
    assert missing.stderr == "error: ./nothing: No such file or directory\n"


def test_a_worker_whose_agent_is_gone_ends(project):
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert run(project, "train.py", MUSTER_LAUNCHER=str(gone.pid)).returncode == 128 + 9


STOPS = """
import os, signal, sys, time
import muster
MODE
print("ready", flush=True)
for _ in range(100_000):
    time.sleep(0.1)
    if muster.stopping(): sys.exit(75)
"""


@pytest.mark.parametrize("mode", ["pass", "muster.on_stop(lambda: print('saved'))"])
def test_a_program_that_says_so_stops_in_order(project, mode):
    (project / "train.py").write_text(STOPS.replace("MODE", mode))
    run_dir, signs = project / "run", project / "signs"
    signs.mkdir()
    env = {
        "MUSTER_RUN_DIR": str(run_dir),
        "MUSTER_STOPPABLE": str(signs),
        "MUSTER_CHECKPOINTS": "/c",
    }
    process = subprocess.Popen(
        [sys.executable, WORKER_MAIN, "train.py"], cwd=project, env={**os.environ, **env}
    )
    out = run_dir / "workers" / "rank_00000.out"
    while not out.exists() or "ready" not in out.read_text():
        assert process.poll() is None
    if mode == "pass":
        while not list(signs.iterdir()):
            assert process.poll() is None
    (sign,) = signs.iterdir()
    assert sign.name == str(process.pid)
    sign.write_text("notice")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=300) == 75
    record = ended(run_dir)
    assert record["cause"] == "stopped" and "notice" in record["message"]
    assert json.loads((run_dir / "stopped.json").read_text()) == {
        "why": "notice",
        "checkpoints": "/c",
    }
    assert ("saved" in out.read_text()) == (mode != "pass")


def test_the_files_it_writes_have_the_names_that_all_others_know(project):
    (project / "train.py").write_text("import sys; sys.exit(75)")
    run_dir = project / "run"
    run(project, "train.py", MUSTER_RUN_DIR=str(run_dir))
    written = {path for path in run_dir.rglob("*") if path.is_file()}
    each_rank = (run_files.OUTPUT, run_files.ERRORS, run_files.RANK_END)
    assert written == {
        *(file.path(run_dir, rank=0) for file in each_rank),
        run_files.STOPPED.path(run_dir),
    }


def test_it_runs_on_an_older_python():
    face = WORKER_MAIN.parents[1]
    paths = [*WORKER_MAIN.parent.glob("*.py"), face / "__init__.py", *face.glob("[eo]*.py")]
    for path in (*paths, face / "run_module.py", face / "on_path" / "muster.py"):
        config = vermin.Config()
        config.set_eval_annotations(False)
        visitor = vermin.visit(path.read_text(), config)
        assert visitor.minimum_versions()[1] <= (3, 8), path


GROUP = """
import atexit, sys, torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
destroy = dist.destroy_process_group
dist.destroy_process_group = lambda: (destroy(), print("left"))
atexit.register(lambda: print("in a group:", dist.is_initialized()))
"""


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        ("pass", ["in a group: True", "left"]),
        ("sys.exit(75)", ["in a group: True", "left"]),
        ("sys.exit(3)", ["in a group: True"]),
        ("1 / 0", ["in a group: True"]),
        ("destroy()", ["in a group: False"]),
    ],
)
def test_a_program_that_succeeds_leaves_its_group_before_the_interpreter_ends(
    project, end, printed
):
    """Else a thread of gloo's may abort it: one run in five failed so on a busy machine."""
    (project / "train.py").write_text(GROUP + end)
    assert own_output(run(project, "train.py").stdout).splitlines() == printed
