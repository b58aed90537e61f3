"""Workers that are forked after a single import are like those that torchrun would have started."""

import json
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from configs.settings.launch import WorkersPerNode
from launch.nodes.this_machine import free_port
from launch.spec import Facts, LaunchSpec, NodeFacts, NodeSpec, Program
from launch.starters.base import variables
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.fork_server import skip_if_quick

WORKER = CHECKOUT / "muster" / "worker"
PRELOAD = WORKER / "preload.py"
# Written in one call, so that lines of several workers do not mix.
SAY = "import os\ndef say(*words): os.write(1, (' '.join(map(str, words)) + '\\n').encode())\n"
# Variables about torchrun's own store, folder and process.
TORCHRUNS = ("MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE",
             "TORCHELASTIC_SIGNALS_TO_HANDLE")  # fmt: skip
SHOW = """
import gc, json, os, sys, tempfile, threading
from says import say
say(json.dumps({
    "env": dict(os.environ), "argv": sys.argv, "path": sys.path, "name": __name__,
    "file": __file__, "main": sys.modules["__main__"].__file__, "package": __package__,
    "cwd": os.getcwd(), "leads": os.getsid(0) == os.getpid(), "tmp": tempfile.gettempdir(),
    "own": [one for one in ("helper", "configs", "launch", "train") if one in sys.modules],
    "threads": len(os.listdir("/proc/self/task")), "orig": sys.orig_argv[1:],
    "unbuffered": sys.stdout.write_through, "collects": gc.isenabled(),
}))
"""


@pytest.fixture
def project_with_packages(tmp_path, monkeypatch) -> Path:
    """Make a program, and a folder with packages that stand in for the installed ones."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(SHOW)
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text(SHOW)
    zipapp.create_archive(tmp_path / "app", root / "app.pyz")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "says.py").write_text(SAY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    return root


def package(project_with_packages: Path, name: str, text: str) -> None:
    (project_with_packages.parent / "packages" / f"{name}.py").write_text(text)


def run_preloaded(
    project_with_packages: Path, *words: str, nproc: int = 2, modules: str = "json", **env: str
):
    workers = WorkersPerNode(nproc)
    node = NodeFacts(NodeSpec("localhost", workers), "node0", sys.executable, "", workers)
    spec = LaunchSpec("run", project_with_packages, Program(("train.py",)))
    own = variables(spec, Facts((node,), "127.0.0.1", 29500), 0) | {"PYTHONUNBUFFERED": "1"}
    flags = ["--nproc", nproc, "--first-rank", 0, "--modules", modules]
    argv = [sys.executable, PRELOAD, *flags, "--", *words]
    return call(*argv, cwd=project_with_packages, env={**own, **env})


def printed(done: subprocess.CompletedProcess) -> list[dict]:
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted(lines, key=lambda line: line["env"]["RANK"])


@pytest.mark.slow
def test_each_rank_is_as_under_torchrun(project_with_packages):
    skip_if_quick()
    words = ["train.py", "--lr", "1e-3", "--"]
    env = {"TMPDIR": str(project_with_packages)}
    ours = printed(run_preloaded(project_with_packages, *words, **env))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
                "--master-addr=127.0.0.1", "--rdzv-id=run", "--max-restarts=0", "--nnodes=1",
                "--node-rank=0", f"--master-port={free_port()}",
                str(WORKER / "worker_main.py")]  # fmt: skip
    theirs = printed(call(*torchrun, *words, cwd=project_with_packages, env=env))
    assert [one["env"]["RANK"] for one in ours] == ["0", "1"]
    for own, other in zip(ours, theirs, strict=True):
        for one in (own, other):
            for name in TORCHRUNS:
                one["env"].pop(name, None)
        assert own.pop("env") == other.pop("env")
        assert own == other
    assert ours[0]["leads"] and ours[0]["own"] == [] and ours[0]["threads"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("words", [["-m", "train", "-h"], ["app.pyz", "-x"]])
def test_forked_module_and_zipapp_start_as_without_fork(project_with_packages, words):
    own = printed(run_preloaded(project_with_packages, *words))[1]
    argv = [sys.executable, WORKER / "worker_main.py", *words]
    (other,) = printed(call(*argv, cwd=project_with_packages, env=own["env"]))
    for name in ("argv", "path", "name", "file", "main", "package", "cwd", "own"):
        assert own[name] == other[name], name


def test_each_forked_worker_replaces_placeholders_by_its_own_values(project_with_packages):
    workers = printed(
        run_preloaded(project_with_packages, "--fill-in", "train.py", "{rank} of {world_size}")
    )
    assert [one["argv"] for one in workers] == [["train.py", f"{rank} of 2"] for rank in range(2)]


THREAD = "import threading, time\n"
THREAD += "threading.Thread(target=time.sleep, args=(10_000,), daemon=True).start()"
CHILD = "import subprocess\nchild = subprocess.Popen(['sleep', '5'])"


@pytest.mark.parametrize(
    "text", [THREAD, pytest.param(CHILD, marks=pytest.mark.slow)], ids=["thread", "process"]
)
def test_module_that_cannot_be_forked_is_refused_as_preload(project_with_packages, text):
    package(project_with_packages, "busy", text)
    done = run_preloaded(project_with_packages, "train.py", modules="decimal,busy")
    assert (done.returncode, done.stdout) == (2, "")
    assert "error: --preload busy: busy leaves a thread or process" in done.stderr


def test_package_known_to_read_rank_is_not_preloaded(project_with_packages):
    package(
        project_with_packages, "lightning_utilities", "import os\nrank = os.environ.get('RANK')"
    )
    done = run_preloaded(project_with_packages, "train.py", modules="lightning_utilities")
    assert "lightning_utilities reads RANK" in done.stderr
    (project_with_packages / "train.py").write_text(
        "import decimal, lightning_utilities, os\nfrom says import say\n"
        "say(lightning_utilities.rank == os.environ['RANK'])"
    )
    assert (
        run_preloaded(project_with_packages, "train.py", modules="decimal").stdout == "True\n" * 2
    )


def test_a_module_that_fails_is_for_the_worker_to_meet(project_with_packages):
    package(project_with_packages, "broken", "raise ValueError('no such device')")
    done = run_preloaded(project_with_packages, "train.py", modules="broken,nothing,decimal")
    assert len(printed(done)) == 2
    assert "note: --preload broken: ValueError: no such device" in done.stderr
    (project_with_packages / "train.py").write_text("import broken")
    assert (
        "ValueError: no such device"
        in run_preloaded(project_with_packages, "train.py", modules="broken").stderr
    )


def test_module_hidden_by_the_project_is_not_preloaded(project_with_packages):
    (project_with_packages / "decimal.py").write_text("mine = True")
    (project_with_packages / "train.py").write_text(
        "import decimal\nfrom says import say\nsay(decimal.mine)"
    )
    done = run_preloaded(project_with_packages, "train.py", modules="xml.dom")
    assert done.stdout == "True\nTrue\n", done.stderr
    done = run_preloaded(project_with_packages, "train.py", modules="decimal")
    assert "imports decimal, but the program's folder has" in done.stderr


SPAWNS = """
import multiprocessing
from says import say
class Result: pass
def make(): return Result()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        say(type(pool.apply(make)) is Result, type(__builtins__).__name__)
"""


def test_a_class_of_the_program_comes_back_from_a_spawned_process(project_with_packages):
    (project_with_packages / "train.py").write_text(SPAWNS)
    done = run_preloaded(project_with_packages, "train.py", nproc=1, modules="multiprocessing.pool")
    assert done.stdout == "True module\n", done.stderr


def test_file_of_a_preloaded_program_hides_the_standard_librarys(project_with_packages):
    for name in ("resource", "signal", "traceback"):
        (project_with_packages / f"{name}.py").write_text("mine = True")
    (project_with_packages / "train.py").write_text(
        "import resource, signal, traceback\nfrom says import say\n"
        "say(resource.mine, signal.mine, traceback.mine)"
    )
    done = run_preloaded(project_with_packages, "train.py", nproc=1, modules="math")
    assert done.stdout == "True True True\n", done.stderr


RANDOM = """
import random, uuid, tempfile, numpy, torch
from says import say
SEED
for name in ("model", "dropout", "order"):
    drawn = {
        "model": lambda: torch.nn.Linear(3, 1).weight.flatten().tolist(),
        "dropout": lambda: torch.nn.functional.dropout(torch.ones(99)).tolist(),
        "order": lambda: torch.cat(list(torch.utils.data.DataLoader(range(99), shuffle=True))),
    }[name]()
    say(name, str(drawn).replace(" ", "").replace("\\n", ""))
say("numpy", numpy.random.rand())
say("random", random.random())
if not torch.initial_seed() == 3:
    say("uuid", uuid.uuid4())
    say("tempfile", next(tempfile._get_candidate_names()))
"""
IMPORTED = "numpy,numpy.random,torch,uuid,tempfile"


@pytest.mark.parametrize("program", ["app", "app.pyz"])
def test_module_hidden_by_an_archive_is_not_preloaded(project_with_packages, program):
    (project_with_packages / "app").mkdir()
    (project_with_packages / "app" / "says.py").touch()
    (project_with_packages / "app" / "__main__.py").touch()
    zipapp.create_archive(project_with_packages / "app", project_with_packages / "app.pyz")
    done = run_preloaded(project_with_packages, program, nproc=1, modules="says")
    assert done.returncode == 2 and "the program's folder has" in done.stderr


def test_random_numbers_differ_as_they_do_between_processes(project_with_packages):
    """This includes data loaders, dropout and initial weights; torch draws its seed at import."""
    skip_if_quick()
    (project_with_packages / "train.py").write_text(RANDOM.replace("SEED", ""))
    lines = run_preloaded(
        project_with_packages, "train.py", nproc=3, modules=IMPORTED
    ).stdout.splitlines()
    assert len(lines) == len(set(lines)) == 3 * 7, lines


def test_random_numbers_of_a_seed_are_those_of_plain_python(project_with_packages):
    skip_if_quick()
    seed = "random.seed(3); numpy.random.seed(3); torch.manual_seed(3)"
    (project_with_packages / "train.py").write_text(RANDOM.replace("SEED", seed))
    ours = run_preloaded(
        project_with_packages, "train.py", nproc=2, modules=IMPORTED
    ).stdout.splitlines()
    alone = call(
        sys.executable, "train.py", cwd=project_with_packages, env={"OMP_NUM_THREADS": "1"}
    )
    plain = alone.stdout.splitlines()
    assert len(plain) == 5 and sorted(ours) == sorted(2 * plain)


def test_stopped_rank_decides_the_exit_code(project_with_packages):
    (project_with_packages / "train.py").write_text(
        "import os, sys; sys.exit(75 * (os.environ['RANK'] == '0'))"
    )
    assert run_preloaded(project_with_packages, "train.py").returncode == 75
