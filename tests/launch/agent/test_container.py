"""Workers inside a container: the engines' commands, and runs that end as they do outside."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from launch.agent.processes.container import (
    MISSING_MODULES_SCRIPT,
    Container,
    assignment_inside,
    container_of,
    outermost,
)
from launch.spec import Assignment, NodeCommand, Program
from muster.errors import UsageError
from muster.ownership import user_name
from tests.commands import call, ended
from tests.launch import images
from tests.launch.pretended import assignment
from tests.launch.submit import JOBS, alive, start, submit, wait_until
from tests.train.workers import read_json
from tests.written import executable, write

LOCAL = ["--launcher", "local", "--run-id", "run"]
FAILS = "#!/bin/sh\nexit 1\n"  # an engine that starts nothing


@pytest.mark.parametrize(
    ("engine", "options", "env"),
    [
        ("apptainer", "--nv --bind /p --bind /d:/data --pwd", {"APPTAINERENV_TOKEN": "secret"}),
        ("singularity", "--bind /p --bind /d:/data --pwd", {"SINGULARITYENV_TOKEN": "secret"}),
        ("ch-run", "--bind /p --bind /d:/data --cd", {"USER": user_name(os.geteuid())}),
    ],
)
def test_command_has_engine_with_mounts_and_variables_in_front(engine, options, env):
    command = NodeCommand("node0", 0, ("python3", "train.py"), {"RANK": "0"}, "/p/src")
    variables = frozenset({"TOKEN", "UNSET"})
    container = Container(engine, "/a b.sif", ("/p", "/d:/data"), "--nv" in options, variables)
    inside = container.command(command, {"TOKEN": "secret", "HOME": "/home/me"})
    words = [*options.split(), "/p/src", "/a b.sif"]
    words = [*words, "--"] if engine == "ch-run" else ["exec", *words]
    argv = (engine, *words, *command.argv)
    assert inside == replace(command, argv=argv, env={"RANK": "0", **env})


def on_node(folder: Path, *mounts: str, **program: str) -> tuple[Assignment, dict[str, str], str]:
    """A node's assignment, its workers' variables with PATH `bin`, and its temporary folder."""
    for name in ("bin", "code", "image", "run", "temporary/own"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    found = assignment(folder / "run")
    program = {"image": str(folder / "image"), **program}
    spec = replace(found.spec, program=Program(("train.py",), mounts=mounts, **program))
    found = replace(found, cwd=str(folder / "code"), spec=spec, data="/usr/lib")
    env = {"PATH": str(folder / "bin"), "MUSTER_CHECKPOINTS": str(folder / "checkpoints")}
    return found, env, str(folder / "temporary" / "own")


def test_a_node_takes_the_first_engine_that_it_has(tmp_path, monkeypatch):
    for engine, gpus in (("ch-run", "0"), ("singularity", ""), ("apptainer", "0,1")):
        executable(tmp_path / "bin" / engine, FAILS)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
        found = container_of(*on_node(tmp_path))
        assert (found.engine, found.has_gpus) == (engine, bool(gpus))


def test_folders_of_a_run_are_mounted(tmp_path):
    executable(tmp_path / "bin" / "apptainer", FAILS)
    (tmp_path / "link").symlink_to("/usr/share")
    mounts = ["/usr/bin", "/etc:/of/host", "/none-made", "/"]
    with pytest.raises(UsageError, match="--container-mounts /none-made on node0: No such file"):
        container_of(*on_node(tmp_path, *mounts))
    mounts.remove("/none-made")
    # a folder that this node lacks is named later, as without a container
    found = container_of(
        *on_node(tmp_path, *mounts, cwd="/none/cwd", project=str(tmp_path / "link"))
    )
    own = {str(tmp_path / name) for name in ("code", "run", "checkpoints", "temporary", "link")}
    assert {*found.mounts} == own | {"/usr/share", "/usr/lib", "/usr/bin", "/etc:/of/host"}
    assert (tmp_path / "checkpoints").is_dir()  # otherwise an engine would not mount it
    assert outermost(["/none/a/b", "/none/a", "/none/a", "/none/ab"]) == ["/none/a", "/none/ab"]


def test_missing_engine_image_or_odd_name_is_named_with_its_node(tmp_path):
    def refused(**program: str) -> str:
        with pytest.raises(UsageError) as caught:
            container_of(*on_node(tmp_path, **program))
        return str(caught.value)

    image = f"--container {tmp_path}/image on node0"
    lacks = f"{image}: none of apptainer, singularity, ch-run found on PATH"
    assert refused() == f"{lacks}; load its module in --prologue"
    executable(tmp_path / "bin" / "podman", FAILS)
    assert refused() == f"{lacks}; start podman with --wrap"
    executable(tmp_path / "bin" / "apptainer", FAILS)
    assert refused(image="/none.sif").startswith("--container /none.sif on node0: No such file")
    for name in ("a:b", "a,b"):
        (tmp_path / name).mkdir()
        line = f"{image}: {tmp_path}/{name} cannot be mounted, "
        assert refused(project=str(tmp_path / name)).startswith(line)


PYTHON = os.path.realpath(sys.executable)
AS_OLD = "import sys; sys.version_info = (3, 6, 9); sys.argv[:] = ['-c', *sys.argv[3:]]"
OLD = f"#!{PYTHON}\n{AS_OLD}\nexec({MISSING_MODULES_SCRIPT!r})\n"
BARE = f'#!/bin/sh\nexec {PYTHON} -IS "$@"\n'


@pytest.mark.parametrize(
    ("engine", "starts", "python", "why"),
    [
        ("apptainer", images.APPTAINER, OLD, "it is Python 3.6, but Muster needs 3.8 or newer"),
        ("apptainer", images.APPTAINER, BARE, "has no torch, which --workers torchrun needs; inst"),
        ("apptainer", images.APPTAINER, None, "apptainer did not start python: "),
        (
            "ch-run",
            FAILS,
            None,
            ": exit code 1; make these folders in the image: mkdir -p IMAGE/",
        ),
    ],
)
def test_image_is_asked_for_what_workers_need(tmp_path, engine, starts, python, why):
    executable(tmp_path / "bin" / engine, starts)
    if python is not None:
        executable(tmp_path / "bin" / "python", python)
    given, env, scratch = on_node(tmp_path)
    given = replace(given, commands=(NodeCommand("node0", 0, ("python",), {}, str(tmp_path)),))
    with pytest.raises(UsageError) as caught:
        assignment_inside(given, env, scratch, lambda: None)
    assert str(caught.value).startswith(f"--container {tmp_path}/image on node0: ")
    assert why.replace("IMAGE", f"{tmp_path}/image") in str(caught.value)


@pytest.fixture
def inside(tmp_path) -> list[str]:
    """The flags of a run inside a container."""
    return images.flags(images.image(tmp_path / "image"))


@pytest.mark.needs("ch-run")
@pytest.mark.parametrize(
    ("end", "code", "why"),
    [
        # a killed worker records no exit code, so this is its process's exit code
        ("os.kill(os.getpid(), 9)", 137, "killed by SIGKILL"),
        ("os._exit(7)", 7, "exit code 7"),
    ],
)
def test_program_has_folder_variables_and_end_as_outside(tmp_path, inside, end, code, why):
    shown = f'{images.INSIDE}, os.getcwd(), os.environ["TOKEN"], os.environ["WORLD_SIZE"]'
    write(tmp_path, {"shows.py": f"import os\nprint({shown}, flush=True)\n{end}\n"})
    flags = [*LOCAL, "--workers", "manual", "--env", "TOKEN=secret words", *inside]
    found, out, err = submit(*flags, "--", "shows.py", cwd=tmp_path)
    assert f"True {tmp_path} secret words 1\n" in out, err
    assert found == code and "rank 0 on node0" in err and why in err, err


@pytest.mark.slow
@pytest.mark.needs("ch-run")
@pytest.mark.parametrize("workers", ["preload", "torchrun"])
def test_run_inside_restarts_shows_stacks_saves_and_leaves_nothing(tmp_path, inside, workers):
    write(tmp_path, {"meets.py": images.MEETS})
    flags = [*LOCAL, "--workers", workers, "--nodes", "2", "--max-restarts", "1", *inside]

    def meet(attempt: int) -> bool:
        outputs = [path.read_text() for path in tmp_path.glob("logs/run/workers/*.out")]
        return sum(f"attempt {attempt} 2.0\n" in text for text in outputs) == 2

    with ended(start(*flags, "--", "meets.py", cwd=tmp_path)) as process:
        wait_until(lambda: meet(0) or process.poll() is not None)
        psutil.Process(read_json(tmp_path / "logs/run/agents/node_00001.json")["pid"]).kill()
        wait_until(lambda: meet(1) or process.poll() is not None)
        words = [sys.executable, JOBS, "--logs-dir", tmp_path / "logs", "stacks", "run"]
        # once both ranks have slept for long, a line about both comes first
        wait_until(lambda: call(*words, cwd=tmp_path).stdout.count("asleep, meets.py:") >= 2)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert len([*tmp_path.glob("saved-*")]) == 2
    wait_until(lambda: alive(tmp_path) == [])


def test_a_run_can_be_ended_while_an_engine_hangs(tmp_path, inside, monkeypatch):
    """For example, the engine is waiting for a disk."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    engine = executable(tmp_path / "bin" / "apptainer", '#!/bin/sh\nexec tail -f "$0"\n')
    with ended(start(*LOCAL, *inside, "--", "true", cwd=tmp_path)) as process:
        wait_until(lambda: alive(engine) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM, err
    wait_until(lambda: alive(tmp_path) == [])
