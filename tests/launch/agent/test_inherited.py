"""What workers inherit and would surprise a program is a line that says what to do."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from launch.agent import inherited
from launch.agent.inherited import notes, version_of
from launch.spec import NodeCommand, Program
from tests.launch.pretended import assignment
from tests.launch.submit import start
from tests.written import executable, write

ENOUGH = dict.fromkeys(("files", "processes", "shared_bytes", "free_shared_bytes"))


@pytest.fixture(autouse=True)
def _enough(monkeypatch):
    monkeypatch.setattr("launch.agent.inherited.limits", lambda: ENOUGH)


@pytest.fixture
def python(tmp_path) -> Path:
    """A Python 3.11 with torch, in an environment."""
    write(tmp_path, {"env/lib/python3.11/site-packages/torch/__init__.py": ""})
    return executable(tmp_path / "env" / "bin" / "python", "#!/bin/sh\n")


def noted(tmp_path, python, env=None, before=None, argv=("train.py",), **program):
    given = assignment(tmp_path)
    spec = replace(given.spec, program=Program(argv, cwd=str(tmp_path), **program))
    commands = (NodeCommand("localhost", 0, (str(python), "train.py"), {}, "/"),)
    env = {"PATH": str(python.parent), **(env or {})}
    given = replace(given, spec=spec, commands=commands)
    return notes(given, env, {"PATH": str(python.parent), **(before or {})})


def test_an_environment_without_surprises_is_not_noted(tmp_path, python):
    write(tmp_path, {"project/train.py": "", "project/utils/__init__.py": ""})
    write(tmp_path, {"project/test/__init__.py": "", "project/random": ""})
    write(tmp_path, {"project/time.py": "", "project/io/__init__.py": ""})  # which hide nothing
    assert noted(tmp_path, python) == []
    assert noted(tmp_path, python, {"PYTHONPATH": "project::/nowhere:train.py"}) == []
    same = str(python.parent.parent / "lib" / "python3.11" / "site-packages")
    assert noted(tmp_path, python, {"PYTHONPATH": same}) == []
    found = noted(tmp_path, python, {"PYTHONPATH": str(Path(os.__file__).parent)})
    assert not any("Python's own" in line for line in found)
    write(tmp_path, {"python3.9-project/train.py": ""})
    assert noted(tmp_path, python, {"PYTHONPATH": "python3.9-project"}) == []


SITE = "lib/python3.9/site-packages"
OTHER_VERSION = (
    "PYTHONPATH has {tmp}/{path}, which is of Python 3.9, but the program runs with Python 3.11, "
    "{python}; unset it, or name that Python with --python"
)
OTHER_TORCH = (
    "PYTHONPATH has {tmp}/site/torch, which hides the torch of {python}; unset it, or leave that "
    "folder out"
)
OWN_RANDOM = (
    "PYTHONPATH has {tmp}/own, where random.py, types would be taken for Python's own; rename what "
    "is there, or leave that folder out"
)
FOLDERS = [
    ({f"{SITE}/numpy/x": ""}, SITE, OTHER_VERSION),
    ({"site/torch/__init__.py": ""}, "site", OTHER_TORCH),
    ({"own/random.py": "", "own/types/__init__.py": "", "own/queue/x": ""}, "own:no", OWN_RANDOM),
]


@pytest.mark.parametrize(("files", "path", "line"), FOLDERS)
def test_folders_of_pythonpath_that_do_not_fit_are_named(tmp_path, python, files, path, line):
    write(tmp_path, files)
    found = noted(tmp_path, python, {"PYTHONPATH": path})
    assert found == [line.format(tmp=tmp_path, path=path, python=python)]


def test_module_torch_is_not_noted_for_program_without_torch(tmp_path, python):
    """As EasyBuild's modules have it."""
    write(tmp_path, {"sw/lib/python3.11/site-packages/torch/__init__.py": ""})
    bare = executable(tmp_path / "bare" / "bin" / "python3.11", "#!/bin/sh\n")
    assert noted(tmp_path, bare, {"PYTHONPATH": "sw/lib/python3.11/site-packages"}) == []


def test_other_python_that_prologue_puts_on_path_is_noted(tmp_path, python):
    other = executable(tmp_path / "conda" / "bin" / "python", "#!/bin/sh\n")
    path = f"{other.parent}:{python.parent}"
    (line,) = noted(tmp_path, python, {"PATH": path})
    assert line == (
        f"python on PATH is {other} after --prologue, but the program runs with {python}; to run "
        "it with the former: --python python"
    )
    assert noted(tmp_path, python, {"PATH": path}, before={"PATH": path}) == []
    assert noted(tmp_path, python, {"PATH": path}, argv=("--exec", "./run.sh")) == []


@pytest.mark.parametrize("program", [{"image": "torch.sif"}, {"wrap": ("enroot", "start")}])
def test_python_in_a_container_gets_no_note(tmp_path, python, program):
    write(tmp_path, {"site/torch/__init__.py": ""})
    other = executable(tmp_path / "conda" / "bin" / "python", "#!/bin/sh\n")
    env = {"PATH": f"{other.parent}:{python.parent}", "PYTHONPATH": "site"}
    assert len(noted(tmp_path, python, env)) == 2
    env["TP_SOCKET_IFNAME"] = "none0"  # it has the node's cards
    (line,) = noted(tmp_path, python, env, **program)
    assert line.startswith("TP_SOCKET_IFNAME is set to none0")


def test_nodes_that_a_machine_simulates_share_its_limits(tmp_path, monkeypatch):
    monkeypatch.setattr("launch.agent.inherited.limits", lambda: {**ENOUGH, "processes": 1100})
    one = assignment(tmp_path)
    assert notes(one, {}, {}) == []
    (line,) = notes(replace(one, machine_ranks=tuple(range(8))), {}, {})
    assert line.startswith("1100 processes and threads at most")


def test_version_of_a_python_is_that_of_its_files(tmp_path, python):
    assert version_of(python) == "3.11"
    base = executable(tmp_path / "usr" / "bin" / "python3.12", "#!/bin/sh\n")
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(base)
    assert version_of(link) == "3.12"
    assert version_of(executable(tmp_path / "shims" / "bin" / "python", "#!/bin/sh\n")) is None


@pytest.mark.parametrize(("gpus", "lines"), [("", 1), ("0", 2)])
def test_socket_ifname_of_an_absent_card_is_noted(tmp_path, python, monkeypatch, gpus, lines):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr(inherited, "card_names", lambda: ["ib0", "lo"])
    env = {"TP_SOCKET_IFNAME": "ib1", "GLOO_SOCKET_IFNAME": "eth0"}
    found = noted(tmp_path, python, env)
    assert len(found) == lines and found[-1] == (
        "TP_SOCKET_IFNAME is set to ib1, and the cards are ib0, lo; torch.distributed.rpc would "
        "fail: set it to one of these, or leave it unset"
    )
    assert noted(tmp_path, python, {"TP_SOCKET_IFNAME": "ib0"}) == []


PROGRAM = """
import os, resource
print("files", resource.getrlimit(resource.RLIMIT_NOFILE))
print("port", os.environ["MASTER_PORT"], os.environ["RANK"])
"""


@pytest.mark.needs("prlimit")
def test_low_file_limit_is_raised_and_noted_once_per_node(tmp_path):
    (tmp_path / "t.py").write_text(PROGRAM)
    flags = ("--launcher", "local", "--nodes", "2", "--workers", "manual", "--run-id", "few")
    process = start(*flags, "--", "t.py", cwd=tmp_path, before=["prlimit", "--nofile=400:1000"])
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "files (1000, 1000)" in out, out + err
    lines = [line for line in err.splitlines() if "may open 1000 files at most" in line]
    nodes = sorted(node for line in lines for node in line.split(": ")[1].split(", "))
    assert nodes == ["node0", "node1"] and all(line.startswith("note: ") for line in lines)


def test_torchruns_variables_of_the_shell_are_named_and_not_passed_on(tmp_path, monkeypatch):
    """With its RANK the torchrun of a run would be taken for that rank."""
    (tmp_path / "t.py").write_text(PROGRAM)
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    process = start("--launcher", "local", "--", "t.py", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert re.search(r"port \d{2,} 0$", out, re.MULTILINE), out
    line = (
        "not passed on, since Muster sets them for torchrun and workers: MASTER_PORT, RANK, WORLD"
    )
    assert line in err
