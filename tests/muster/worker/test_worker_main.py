"""A program finds everything as with plain Python, and the run folder shows how it ended."""

import json
import os
import shutil
import sys
import zipapp
from pathlib import Path

import pytest
import vermin

from tests.commands import call
from tests.muster.worker.shims import WORKER_MAIN, ended, run

SHOW = """
import sys
modules = sorted(name for name in sys.modules if name.partition(".")[0] != "_muster")
import json, os, pickle, threading
class Thing: pass
import helper, configs, launch
assert pickle.loads(pickle.dumps(Thing())).__class__ is Thing
assert sys.modules["__main__"].Thing is Thing
print(json.dumps({
    "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "path": [one for one in sys.path if not one.endswith("muster/on_path")],
    "tmpdir": os.environ.get("TMPDIR"), "helper": helper.__file__, "package": __package__,
    "configs": configs.__file__, "launch": launch.__file__, "threads": threading.active_count(),
    "modules": [name for name in modules if name != "__future__"],
    "builtins": type(__builtins__).__name__,
}))
"""


@pytest.fixture
def clashing_project(tmp_path) -> Path:
    """Make a folder with names that this repository also has."""
    root = tmp_path / "a project"
    for name in ("configs", "launch", "package"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").touch()
    (root / "helper.py").touch()
    (root / "train.py").write_text(SHOW)
    (root / "package" / "module.py").write_text(SHOW)
    (root / "package" / "__main__.py").write_text(SHOW)
    shutil.copytree(root, root / "app")
    (root / "app" / "train.py").rename(root / "app" / "__main__.py")
    zipapp.create_archive(root / "app", root / "app.pyz")
    return root


ENVIRONMENTS = {
    "plain": {},
    "PYTHONPATH=.": {"PYTHONPATH": "."},
    "PYTHONSAFEPATH=1": {"PYTHONPATH": ".:/nowhere", "PYTHONSAFEPATH": "1"},
}


SCRIPT = ("train.py", "--lr", "1e-3", "-m", "--", "a b")
MODULE = ("-m", "package.module", "--x")
FORMS = (
    SCRIPT,
    ("./train.py",),
    MODULE,
    ("-m", "package", "-h"),
    ("app", "--x"),
    ("./app/",),
    ("app.pyz", "--x"),
)


@pytest.mark.parametrize(
    ("words", "where"),
    [
        *((words, "plain") for words in FORMS),
        *(
            (words, where)
            for words in (SCRIPT, MODULE)
            for where in ENVIRONMENTS
            if where != "plain"
        ),
    ],
)
def test_program_sees_what_plain_python_shows(clashing_project, words, where):
    (clashing_project / "inspection").mkdir()
    env = ENVIRONMENTS[where] | {"MUSTER_INSPECTION": str(clashing_project / "inspection")}
    with_us, plain = (
        run(clashing_project, *words, through=through, **env) for through in (True, False)
    )
    assert with_us.returncode == 0, with_us.stderr
    assert json.loads(with_us.stdout) == json.loads(plain.stdout)


CPUS = "import os; print(sorted(os.sched_getaffinity(0)))"


def test_a_worker_keeps_to_the_cpus_that_its_agent_has_chosen(clashing_project):
    (clashing_project / "cpus.py").write_text(CPUS)
    *_, last = every = sorted(os.sched_getaffinity(0))
    for words in (["cpus.py"], ["--exec", sys.executable, "cpus.py"]):
        for local_rank, own in enumerate((every, [last])):
            cpus = f"{','.join(map(str, every))};{last}"
            found = run(clashing_project, *words, MUSTER_CPUS=cpus, LOCAL_RANK=str(local_rank))
            assert found.stdout == f"{own}\n" and found.stderr == ""
    elsewhere = run(clashing_project, "cpus.py", MUSTER_CPUS="1023")  # no longer available
    assert elsewhere.stdout == f"{every}\n"
    assert elsewhere.stderr == "note: not bound to CPUs 1023: Invalid argument\n"


def test_worker_of_a_scheduler_has_its_own_task_number(clashing_project):
    (clashing_project / "task.sh").write_text('echo "$SLURM_PROCID/$SLURM_LOCALID"')
    ranks = {"RANK": "3", "LOCAL_RANK": "1"}
    names = {"MUSTER_TASK_VARIABLES": "SLURM_PROCID SLURM_LOCALID SLURM_NTASKS"}
    for inherited, own in (({"SLURM_PROCID": "1", **names}, "3/1\n"), ({}, "/\n")):
        assert (
            run(clashing_project, "--exec", "bash", "task.sh", **ranks, **inherited).stdout == own
        )


# Some modules that this repository's own files or torch's launcher import.
HIDDEN = ("resource", "json", "signal", "traceback", "socket", "ctypes")


@pytest.mark.parametrize("end", ["", "raise ValueError('its own end')"])
def test_file_of_a_program_hides_the_standard_librarys(clashing_project, end):
    for name in HIDDEN:
        (clashing_project / f"{name}.py").write_text("mine = True")
    names = ", ".join(HIDDEN)
    mine = " and ".join(f"{name}.mine" for name in HIDDEN)
    (clashing_project / "train.py").write_text(f"import {names}\nprint({mine})\n{end}")
    run_dir = clashing_project / "run"
    with_us = run(clashing_project, "train.py", MUSTER_RUN_DIR=str(run_dir))
    plain = run(clashing_project, "train.py", through=False)
    assert with_us.returncode == plain.returncode == bool(end)
    assert (run_dir / "workers" / "rank_00000.out").read_text() == plain.stdout == "True\n"
    assert ended(run_dir)["message"] == ("ValueError: its own end" if end else "")


def test_signals_that_a_starter_ignores_have_their_usual_effect(clashing_project):
    shows = "import signal; print(*map(signal.getsignal, (signal.SIGUSR1, signal.SIGUSR2)))"
    (clashing_project / "train.py").write_text(shows)
    words = ["sh", "-c", 'trap "" USR1 USR2; exec "$@"', "sh", sys.executable, str(WORKER_MAIN)]
    for program in (["train.py"], ["--exec", sys.executable, "train.py"]):
        done = call(*words, *program, cwd=clashing_project)
        assert done.stdout == "0 0\n", done.stderr


def test_muster_is_found_and_the_users_own_comes_first(clashing_project):
    (clashing_project / "train.py").write_text("import muster; print(muster.__file__)")
    assert run(clashing_project, "train.py").stdout.strip() == str(
        WORKER_MAIN.parents[1] / "__init__.py"
    )
    (clashing_project / "muster.py").touch()
    assert run(clashing_project, "train.py").stdout.strip() == str(clashing_project / "muster.py")


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


@pytest.mark.parametrize("program", ["spawn_app", "spawn_app.pyz"])
def test_a_folder_s_classes_are_found_in_spawned_processes(clashing_project, program):
    folder = clashing_project / "spawn_app"
    folder.mkdir()
    (folder / "work.py").write_text("def double(x): return 2 * x")
    (folder / "__main__.py").write_text(
        "import multiprocessing, work\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(work.double, [1, 2]))\n"
    )
    zipapp.create_archive(folder, clashing_project / "spawn_app.pyz")
    done = run(clashing_project, program)
    assert done.stdout == "[2, 4]\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_muster_is_found_in_processes_of_a_python_that_lacks_it(clashing_project, method):
    (clashing_project / "train.py").write_text(SPAWN.replace("METHOD", method))
    done = run(clashing_project, "-S", str(WORKER_MAIN), "train.py", through=False)
    assert done.stdout.strip() == f"0 {WORKER_MAIN.parents[1] / '__init__.py'}", done.stderr


def test_another_command_takes_the_place_of_it(clashing_project):
    done = run(
        clashing_project, "--exec", "sh", "-c", 'echo "$RANK $1"; exit 7', "sh", "a b", RANK="3"
    )
    assert (done.returncode, done.stdout) == (7, "3 a b\n")
    killed = run(
        clashing_project, "--exec", "sh", "-c", "kill -40 $$", MUSTER_RUN_DIR=str(clashing_project)
    )
    assert killed.returncode == 168  # a real-time signal has no name
    assert ended(clashing_project)["message"] == "sh was killed by signal 40"
    missing = run(clashing_project, "--exec", "./nothing")
    assert missing.returncode == 127
    assert missing.stderr == "error: ./nothing: No such file or directory\n"


STOPS = """
import os, signal
import muster
muster.on_stop(lambda: print("saved"))
os.kill(os.getpid(), signal.SIGUSR1)  # a scheduler's notice to all processes is the agent's
(sign,) = os.listdir(os.environ["MUSTER_STOPPABLE"])
assert sign == str(os.getpid())
open(os.path.join(os.environ["MUSTER_STOPPABLE"], sign), "w").write("notice")
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_program_that_says_so_stops_in_order(clashing_project):
    (clashing_project / "train.py").write_text(STOPS)
    run_dir, signs = clashing_project / "run", clashing_project / "signs"
    signs.mkdir()
    env = {"MUSTER_RUN_DIR": str(run_dir), "MUSTER_STOPPABLE": str(signs)}
    env |= {"MUSTER_CHECKPOINTS": "/c"}
    assert run(clashing_project, "train.py", **env).returncode == 75
    record = ended(run_dir)
    assert record["cause"] == "stopped" and "notice" in record["message"]
    stopped = json.loads((run_dir / "stopped.json").read_text())
    assert stopped == {"why": "notice", "checkpoints": "/c"}
    assert (run_dir / "workers" / "rank_00000.out").read_text() == "saved\n"


STOPPED_BY_ANOTHER_RANK = """
from pathlib import Path
import muster
from muster.orderly_stop import StoppedCleanly
raise StoppedCleanly(3, "SIGTERM", Path("/c"))
"""


def test_program_that_stops_as_another_rank_was_asked_says_why(clashing_project):
    (clashing_project / "train.py").write_text(STOPPED_BY_ANOTHER_RANK)
    run_dir = clashing_project / "run"
    assert run(clashing_project, "train.py", MUSTER_RUN_DIR=str(run_dir)).returncode == 75
    assert json.loads((run_dir / "stopped.json").read_text())["why"] == "SIGTERM"


def test_worker_runs_on_python_3_8():
    face = WORKER_MAIN.parents[1]
    paths = [*WORKER_MAIN.parent.glob("*.py"), face / "__init__.py", *face.glob("[eo]*.py")]
    for path in (*paths, face / "run_module.py", face / "on_path" / "muster.py"):
        config = vermin.Config()
        config.set_eval_annotations(False)
        visitor = vermin.visit(path.read_text(), config)
        assert visitor.minimum_versions()[1] <= (3, 8), path


LOSES = "raise RuntimeError('[pair.cc:553] Connection closed by peer [10.0.0.2]:99')\n"


@pytest.mark.parametrize("is_led", [True, False])
def test_error_of_a_lost_peer_is_marked(clashing_project, is_led):
    """This holds even if the program has its own hook, as torch has."""
    hook = "import sys\nshow = sys.excepthook\n"
    hook += "sys.excepthook = lambda *all: (sys.stderr.write('mine\\n'), show(*all))\n"
    (clashing_project / "train.py").write_text(hook + LOSES)
    led = {"MUSTER_RUN_DIR": str(clashing_project)} if is_led else {}
    done = run(clashing_project, "train.py", **led)
    printed = (
        (clashing_project / "workers" / "rank_00000.err").read_text() if is_led else done.stderr
    )
    lines = printed.splitlines()
    assert done.returncode == 1 and len(lines) == 5
    assert lines[0].endswith("mine") and lines[-1].endswith("closed by peer [10.0.0.2]:99")
    assert {line.startswith("(a consequence) ") for line in lines} == {is_led}


def test_another_error_is_shown_as_python_shows_it(clashing_project):
    (clashing_project / "train.py").write_text("raise RuntimeError('bad sample')\n")
    run(clashing_project, "train.py", MUSTER_RUN_DIR=str(clashing_project))
    printed = (clashing_project / "workers" / "rank_00000.err").read_text()
    assert printed.startswith("Traceback") and printed.endswith("RuntimeError: bad sample\n")
