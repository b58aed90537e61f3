"""Workers inside a container: the engines' commands, and runs that end as without one."""

import os
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.agent.processes.container import (
    LACKS,
    Container,
    assignment_inside,
    container_of,
    outermost,
)
from launch.spec import NodeCommand, Program
from muster.checkout import CHECKOUT
from muster.errors import UsageError
from muster.ownership import user_name
from tests.commands import call, ended
from tests.launch import images
from tests.launch.pretended import assignment
from tests.launch.submit import JOBS, alive, run_well, start, submit, wait_until
from tests.train.workers import read_json
from tests.written import executable

TAIL = shutil.which("tail")
LOCAL = ["--launcher", "local", "--run-id", "run"]
MANUAL = [*LOCAL, "--workers", "manual"]
MOUNTS = ("/home/me/project", "/data:/mnt/data")
ARGV = ("python3", "/muster/worker_main.py", "train.py", "--lr", "1e-3")
COMMAND = NodeCommand("node0", 0, ARGV, {"RANK": "0"}, "/home/me/project/src")


@pytest.mark.parametrize("engine", ["apptainer", "singularity"])
@pytest.mark.parametrize("has_gpus", [False, True])
def test_the_command_of_apptainer(engine, has_gpus):
    variables = frozenset({"TOKEN", "UNSET"})
    container = Container(engine, "/images/a b.sif", MOUNTS, has_gpus, variables)
    inside = container.command(COMMAND, {"TOKEN": "secret", "HOME": "/home/me"})
    nv = ["--nv"] if has_gpus else []
    binds = ["--bind", "/home/me/project", "--bind", "/data:/mnt/data"]
    assert [*inside.argv] == [
        engine, "exec", *nv, *binds, "--pwd", "/home/me/project/src", "/images/a b.sif", *ARGV
    ]  # fmt: skip
    of_user = {f"{engine.upper()}ENV_TOKEN": "secret"}
    assert inside == replace(COMMAND, argv=inside.argv, env={**COMMAND.env, **of_user})


def test_the_command_of_charliecloud():
    container = Container("ch-run", "/images/torch", MOUNTS, True, frozenset({"TOKEN"}))
    inside = container.command(COMMAND, {"TOKEN": "secret", "USER": "me"})
    binds = ["--bind", "/home/me/project", "--bind", "/data:/mnt/data"]
    assert [*inside.argv] == [
        "ch-run", *binds, "--cd", "/home/me/project/src", "/images/torch", "--", *ARGV
    ]  # fmt: skip
    assert inside.env == {**COMMAND.env, "USER": "me"}
    assert container.command(COMMAND, {}).env["USER"] == user_name(os.geteuid())


PATHS = st.lists(st.sampled_from("ab"), max_size=4).map(lambda parts: "/none/" + "/".join(parts))


def test_root_of_a_machine_is_never_mounted():
    assert outermost(["/", "/none/a"]) == ["/none/a"]


@given(st.lists(PATHS, min_size=1))
def test_every_folder_is_mounted_once(folders):
    mounts = [Path(mount) for mount in outermost(folders)]
    for folder in folders:
        assert sum(Path(folder).is_relative_to(mount) for mount in mounts) == 1
    assert {*map(str, mounts)} <= {str(Path(folder)) for folder in folders}


def test_folder_behind_a_link_is_mounted_at_its_real_path(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "scratch" / "run").mkdir(parents=True)
    (tmp_path / "project" / "logs").symlink_to(tmp_path / "scratch")
    found = outermost([str(tmp_path / "project"), str(tmp_path / "project" / "logs" / "run")])
    assert found == [str(tmp_path / "project"), str(tmp_path / "scratch" / "run")]


def beside(tmp_path: Path) -> list[str]:
    """The folders of a run that are not in its checkout."""
    return [f"{tmp_path}-{name}" for name in ("logs", "checkpoints", "temporary")]


def on_node(tmp_path: Path, *mounts: str, image: str = "", data: str = "", **program: str):
    """A node's assignment, the variables of its workers, and its folder for temporary files.

    Its PATH has the folder `bin` of the test alone.
    """
    logs, checkpoints, temporary = beside(tmp_path)
    for folder in (tmp_path / "image", Path(logs, "run"), Path(temporary)):
        folder.mkdir(parents=True, exist_ok=True)
    given = assignment(Path(logs, "run"))
    image = image or str(tmp_path / "image")
    spec = replace(
        given.spec, program=Program(("train.py",), image=image, mounts=mounts, **program)
    )
    given = replace(given, cwd=str(tmp_path), spec=spec, data=data)
    env = {"PATH": str(tmp_path / "bin"), "MUSTER_CHECKPOINTS": checkpoints}
    return given, env, f"{temporary}/scratch"


def of_node(tmp_path: Path, *mounts: str, **more: str) -> Container:
    return container_of(*on_node(tmp_path, *mounts, **more))


def engines(tmp_path: Path, *names: str) -> None:
    for name in names:
        executable(tmp_path / "bin" / name, "#!/bin/sh\n")


def test_a_node_takes_the_first_engine_that_it_has(tmp_path):
    engines(tmp_path, "ch-run", "docker")
    assert of_node(tmp_path).engine == "ch-run"
    engines(tmp_path, "singularity")
    assert of_node(tmp_path).engine == "singularity"
    engines(tmp_path, "apptainer")
    assert of_node(tmp_path).engine == "apptainer"


def test_gpus_are_asked_for_where_a_node_has_some(tmp_path, monkeypatch):
    engines(tmp_path, "apptainer")
    for visible, has_gpus in (("0,1", True), ("", False)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert of_node(tmp_path).has_gpus == has_gpus


def test_folders_of_a_run_are_mounted(tmp_path):
    engines(tmp_path, "apptainer")
    more = ["/usr/bin", "/etc:/of/host"]
    found = of_node(tmp_path, *more, cwd="/usr/include", project="/usr/share", data="/usr/lib")
    logs, checkpoints, temporary = beside(tmp_path)
    own = {str(tmp_path), f"{logs}/run", checkpoints, temporary}
    own |= {"/usr/lib", "/usr/bin", "/usr/include", "/usr/share"}
    assert own <= {*found.mounts} and found.mounts[-1] == "/etc:/of/host"
    assert Path(checkpoints).is_dir()  # else an engine would not mount it


def test_folder_that_node_lacks_is_neither_mounted_nor_made(tmp_path):
    """As without a container: the project may be elsewhere, and its absence is named later."""
    engines(tmp_path, "apptainer")
    found = of_node(tmp_path, cwd="/none/snapshot", project="/none")
    assert not [mount for mount in found.mounts if "none" in mount] and not Path("/none").exists()


def refusal(tmp_path: Path, *mounts: str, **how: str) -> str:
    with pytest.raises(UsageError) as caught:
        of_node(tmp_path, *mounts, **how)
    return str(caught.value)


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_folder_that_an_engine_would_take_for_two_is_refused(tmp_path, name):
    engines(tmp_path, "apptainer")
    project = Path(f"{tmp_path}-{name}")
    project.mkdir()
    assert refusal(tmp_path, project=str(project)) == (
        f"--container {tmp_path}/image on node0: {project} cannot be mounted, since its name has "
        "a : or a comma; rename it"
    )


def test_missing_engine_image_or_mount_is_named_with_its_node(tmp_path):
    (tmp_path / "bin").mkdir()
    lacks = (
        f"--container {tmp_path}/image on node0: PATH has none of apptainer, singularity, ch-run"
    )
    assert refusal(tmp_path) == f"{lacks}; load its module by --prologue"
    engines(tmp_path, "podman")
    assert refusal(tmp_path) == f"{lacks}; podman is started by --wrap"
    engines(tmp_path, "ch-run")
    found = refusal(tmp_path, image="/none/a.sif")
    assert found == (
        "--container /none/a.sif on node0: no such file or folder; copy the image there"
    )
    found = refusal(tmp_path, "/none/data:/data", "/none/set", str(tmp_path))
    assert found == (
        "--container-mounts /none/data:/data,/none/set on node0: no such file or folder"
    )


# It ends with its argument: an exit code, or a signal if it is negative.
SHOWS = f"""
import os, sys
inside = bool({images.INSIDE})
with open(os.environ["MUSTER_RUN_DIR"] + "/from-" + os.environ["RANK"], "w") as file:
    print(inside, os.environ["WORLD_SIZE"], os.getcwd(), os.environ["TOKEN"], file=file)
number = int(sys.argv[1])
os.kill(os.getpid(), -number) if number < 0 else sys.exit(number)
"""


@pytest.fixture
def project(tmp_path) -> Path:
    """A project with the programs, below which nothing of a run is left."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {"shows.py": SHOWS, "waits.py": images.WAITS, "ddp.py": images.DDP}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def engine(request, tmp_path, monkeypatch) -> str:
    """The engine that is found first. Debian has no apptainer: a stand-in takes its place."""
    name: str = getattr(request, "param", "apptainer")
    if name == "apptainer":
        images.apptainer(tmp_path / "bin")
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    return name


# What else runs in charliecloud's containers is in tests/cluster/test_containers.py.
in_both = pytest.mark.parametrize(
    "engine",
    ["apptainer", pytest.param("ch-run", marks=pytest.mark.needs("ch-run"))],
    indirect=True,
)


@pytest.fixture
def inside(engine, tmp_path) -> list[str]:
    """The flags with which a program runs inside an image."""
    return images.flags(images.image(tmp_path / "image"))


@in_both
def test_programs_run_inside_with_what_they_have_outside(project, inside, tmp_path, engine):
    flags = [*MANUAL, "--nodes", "2", "--env", "TOKEN=secret words", *inside]
    run_well(*flags, "--", "shows.py", "0", cwd=project)
    for rank in (0, 1):
        text = (project / "logs" / "run" / f"from-{rank}").read_text()
        assert text == f"True 2 {project} secret words\n"
    if engine == "apptainer":
        _, *calls = (tmp_path / "bin" / "calls").read_text().split("exec --bind ")
        assert len(calls) == 4  # each node asks the image, and starts a worker
        for words in (f" --bind {call}" for call in calls):
            assert "secret" not in words
            mounts = re.findall("--bind (\\S+)", words)
            assert any(CHECKOUT.is_relative_to(mount) for mount in mounts)
            assert f" --pwd {project} " in words
            assert f" {tmp_path}/image {sys.executable} " in words


@pytest.mark.slow
def test_torchrun_is_that_of_the_image(project, inside):
    out = run_well(*LOCAL, "--nproc-per-node", "2", *inside, "--", "ddp.py", cwd=project)
    assert "total 1.0" in out


@pytest.mark.slow
def test_preloaded_workers_are_forked_inside(project, inside):
    flags = [*LOCAL, "--workers", "preload", "--nproc-per-node", "2", *inside]
    assert "total 1.0" in run_well(*flags, "--", "ddp.py", cwd=project)


AGAIN = f"""
import os, signal
attempt = os.environ["MUSTER_ATTEMPT"]
print("attempt", attempt, bool({images.INSIDE}), any(name in os.environ for name in {images.SET}))
if attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_restarted_workers_fork_in_container_with_variables_of_image(project, inside):
    (project / "again.py").write_text(AGAIN)
    flags = [*LOCAL, "--workers", "preload", "--preload", "json", "--max-restarts", "1", *inside]
    code, out, err = submit(*flags, "--", "again.py", cwd=project)
    assert code == 0, err
    assert "attempt 0 True True" in out and "attempt 1 True True" in out
    assert "rank 0 on node0 was killed by SIGKILL" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "why"), [(7, 7, "exit code 7"), (-signal.SIGKILL, 137, "killed by SIGKILL")]
)
def test_an_end_is_that_of_the_program(project, inside, number, code, why):
    flags = [*MANUAL, "--env", "TOKEN=x", *inside]
    found, _, err = submit(*flags, "--", "shows.py", str(number), cwd=project)
    assert found == code and "rank 0 on node0" in err and why in err, err


def ready(project: Path) -> int:
    outputs = project.glob("logs/run/workers/*.out")
    return sum("ready" in path.read_text() for path in outputs)


def agent_of(project: Path, node: int) -> psutil.Process:
    return psutil.Process(read_json(project / f"logs/run/agents/node_{node:05d}.json")["pid"])


def notice(project: Path) -> None:
    """Announce the time limit as Slurm does, to all processes of each node's step."""
    for node in (0, 1):
        agent = agent_of(project, node)
        for process in (agent, *agent.children(recursive=True)):
            process.send_signal(signal.SIGUSR2)


@pytest.mark.slow
@pytest.mark.parametrize("way", [signal.SIGTERM, signal.SIGUSR2])
def test_a_run_that_is_stopped_has_saved_and_left_nothing(project, inside, way):
    flags = [*MANUAL, "--nodes", "2", *inside]
    with ended(start(*flags, "--", "waits.py", cwd=project)) as process:
        assert wait_until(lambda: ready(project) == 2 or process.poll() is not None)
        notice(project) if way == signal.SIGUSR2 else process.send_signal(way)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 75, err
    assert [(project / f"saved-{rank}").read_text() for rank in (0, 1)] == ["True\n"] * 2
    assert wait_until(lambda: alive(project.parent) == [])


@pytest.mark.slow
@in_both
def test_stacks_show_where_a_worker_inside_is(project, inside):
    with ended(start(*MANUAL, "--nodes", "2", *inside, "--", "waits.py", cwd=project)) as process:
        assert wait_until(lambda: ready(project) == 2 or process.poll() is not None)
        words = [sys.executable, JOBS, "--logs-dir", project / "logs", "stacks", "run"]
        assert wait_until(lambda: call(*words, cwd=project).stdout.count("asleep, waits.py:") == 2)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)


@pytest.mark.slow
@in_both
def test_agents_that_are_killed_leave_nothing_inside(project, inside):
    with ended(start(*MANUAL, "--nodes", "2", *inside, "--", "waits.py", cwd=project)) as process:
        assert wait_until(lambda: ready(project) == 2 or process.poll() is not None)
        agents = [agent_of(project, node) for node in (0, 1)]
        for agent in agents:
            agent.kill()
        process.communicate(timeout=300)
    assert process.returncode not in (0, None)
    assert wait_until(lambda: alive(project.parent) == [])


def test_hanging_container_engine_is_abandoned_when_attempt_is_over(tmp_path):
    engine = executable(tmp_path / "bin" / "apptainer", f"#!/bin/sh\nexec {TAIL} -f $0\n")
    given, env, scratch = on_node(tmp_path)
    Path(scratch).mkdir()
    given = replace(given, commands=(replace(COMMAND, cwd=str(tmp_path)),))
    goes_on = iter([True, True, False])
    try:
        assert assignment_inside(given, env, scratch, lambda: next(goes_on)) is None
    finally:
        for child in psutil.Process().children():
            if child.pid in alive(engine):
                child.kill()
                child.wait()


@pytest.mark.slow
def test_a_run_can_be_ended_while_an_engine_hangs(project, tmp_path, monkeypatch):
    """As one that waits for a disk."""
    engine = tmp_path / "bin" / "apptainer"
    executable(engine, f"#!/bin/sh\nexec tail -f {engine}\n")
    monkeypatch.setenv("PATH", str(engine.parent), prepend=":")
    flags = [*MANUAL, *images.flags(images.image(tmp_path / "image"))]
    with ended(start(*flags, "--", "shows.py", "0", cwd=project)) as process:
        assert wait_until(lambda: alive(engine) or process.poll() is not None)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert process.returncode == 128 + signal.SIGTERM
    end = read_json(project / "logs" / "run" / "agents" / "node_00000.exit.json")
    assert end["message"] == "told to stop (SIGTERM)"
    assert wait_until(lambda: alive(tmp_path) == [])


@pytest.mark.slow
def test_an_image_without_the_python_is_named_with_its_node(project, engine, tmp_path):
    image = images.image(tmp_path / "image")
    flags = [*MANUAL, *images.flags(image, "nopython3"), "--", "shows.py", "0"]
    code, _, err = submit(*flags, cwd=project)
    assert code == 2 and f"--container {image} on node0: {engine} did not start nopython3: " in err
    assert not list(project.glob("logs/run/workers/*")) and alive(tmp_path) == []


@pytest.mark.slow
def test_an_image_without_torch_is_named_with_its_node(project, inside, tmp_path):
    text = f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -IS "$@"\n'
    python = executable(tmp_path / "bare" / "python3", text)
    flags = [*LOCAL, *inside[:-1], str(python), "--", "ddp.py"]
    code, _, err = submit(*flags, cwd=project)
    assert (
        code == 2
        and (
            f"--container {tmp_path}/image on node0: its {python} has no torch, which --workers "
            "torchrun needs; install it in the image, or name another Python there by --python\n"
        )
        in err
    )
    assert alive(tmp_path) == []


OLD = """#!{python}
import sys
sys.version_info = (3, 6, 9)
sys.argv[:] = ["-c", *sys.argv[3:]]
exec({question!r})
"""


@pytest.mark.slow
def test_an_image_with_an_old_python_is_named_with_its_node(project, inside, tmp_path):
    text = OLD.format(python=os.path.realpath(sys.executable), question=LACKS)
    python = executable(tmp_path / "old" / "python3", text)
    flags = [*MANUAL, *inside[:-1], str(python), "--", "shows.py", "0"]
    code, _, err = submit(*flags, cwd=project)
    assert code == 2 and f"--container {tmp_path}/image on node0: " in err
    assert f" did not start {python}: it is Python 3.6; Muster needs 3.8 or newer\n" in err


@pytest.mark.slow
@pytest.mark.needs("ch-run")
def test_charliecloud_needs_places_for_all_mounts(project, tmp_path):
    image = images.image(tmp_path / "image")
    (image / "usr").rmdir()
    code, _, err = submit(*MANUAL, *images.flags(image), "--", "shows.py", "0", cwd=project)
    assert code == 2 and "ch-run did not start" in err
    assert f"; make these folders of the image: mkdir -p {image}/usr\n" in err


def test_an_image_that_is_not_here_is_refused_before_anything_starts(project):
    code, _, err = submit(*MANUAL, "--container", "none.sif", "--", "shows.py", "0", cwd=project)
    assert code == 2 and err == f"error: --container {project}/none.sif: no such file or folder\n"
    assert not (project / "logs").exists()
