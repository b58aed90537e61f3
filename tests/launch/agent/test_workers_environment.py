"""What a node's workers inherit: the program's Python is the first that its commands find."""

import os
import re
from dataclasses import replace
from pathlib import Path
from socket import AF_INET, AF_INET6
from types import SimpleNamespace

import pytest

from configs.settings.launch import ProgramConfig
from launch.agent.processes.workers import (
    environment_of,
    refuse_absent_interface,
    start_workload,
)
from launch.nodes.resources import CPUS
from launch.spec import NodeCommand, Program
from launch.starters.base import WarmInterpreter, variables
from muster.errors import MusterError, UsageError
from tests.configs.made import make_config
from tests.launch.pretended import FACTS, assignment
from tests.launch.submit import start
from tests.written import executable


def path_of(tmp_path: Path, python: str | None, cwd: str | None = None, **secrets: str) -> str:
    given = assignment(tmp_path)
    program = replace(Program(("--exec", "./run.sh")), python=python, cwd=cwd)
    spec = replace(given.spec, program=program, secrets=secrets)
    return environment_of(replace(given, spec=spec), None, "127.0.0.1", str(tmp_path))["PATH"]


@pytest.fixture
def python(tmp_path) -> str:
    return str(executable(tmp_path / "env" / "bin" / "python", "#!/bin/sh\n"))


def test_commands_of_the_program_find_its_python_first(tmp_path, python, monkeypatch):
    """Among them are `-- python x.py` and scripts; over ssh nothing activates its environment."""
    monkeypatch.setenv("PATH", "/usr/bin")
    folder = str(Path(python).parent)
    assert path_of(tmp_path, python) == f"{folder}{os.pathsep}/usr/bin"
    assert path_of(tmp_path, "env/bin/python", str(tmp_path)) == f"{folder}{os.pathsep}/usr/bin"


def test_path_with_the_python_or_of_the_user_is_unchanged(tmp_path, python, monkeypatch):
    as_it_is = f"/usr/lib{os.pathsep}{Path(python).parent}"
    monkeypatch.setenv("PATH", as_it_is)
    assert path_of(tmp_path, python) == as_it_is
    for other in (None, "python3"):  # Muster's own Python; the node's Python, by its name
        assert path_of(tmp_path, other) == as_it_is
    assert path_of(tmp_path, python, PATH="/mine") == "/mine"


@pytest.mark.parametrize(("level", "found"), [("0", "1"), (None, "1"), ("3", "3")])
def test_a_shell_of_the_program_is_no_login_over_ssh(tmp_path, monkeypatch, level, found):
    """Otherwise bash would read .bashrc, which may put another Python first."""
    monkeypatch.delenv("SHLVL", raising=False)
    if level is not None:
        monkeypatch.setenv("SHLVL", level)
    given = assignment(tmp_path)
    assert environment_of(given, None, "127.0.0.1", str(tmp_path))["SHLVL"] == found


def test_settings_of_torchrun_in_the_environment_do_not_reach_ours(tmp_path, monkeypatch):
    """Kubeflow sets them for its own torchrun."""
    monkeypatch.setenv("PET_RDZV_BACKEND", "etcd")
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    found = environment_of(assignment(tmp_path), None, "127.0.0.1", str(tmp_path))
    assert not {"PET_RDZV_BACKEND", "TORCHELASTIC_HEALTH_CHECK_PORT"} & found.keys()
    assert found["OMP_NUM_THREADS"] == "3"


PROGRAM = """
import os
print("port", os.environ["MASTER_PORT"], os.environ["RANK"])
"""


def test_torchruns_variables_of_the_shell_are_named_and_not_passed_on(tmp_path, monkeypatch):
    """With the shell's RANK, a run's torchrun would be taken for that rank."""
    (tmp_path / "t.py").write_text(PROGRAM)
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "MASTER_PORT": "7"}.items():
        monkeypatch.setenv(name, value)
    process = start("--launcher", "local", "--", "t.py", cwd=tmp_path)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert re.search(r"port \d{2,} 0$", out, re.MULTILINE), out
    assert re.search("^note: not passed on, .*: MASTER_PORT, RANK, WORLD_SIZE$", err, re.MULTILINE)


def test_variables_that_workers_get_cannot_be_set(tmp_path):
    given = replace(assignment(tmp_path), data="/data")
    env = environment_of(given, None, "127.0.0.1", str(tmp_path))
    names = {name for name in env.keys() - os.environ.keys() if name.startswith("MUSTER_")}
    names |= {CPUS, *variables(given.spec, FACTS, 0), "RANK", "LOCAL_RANK", "ROLE_RANK"}
    assert {"MUSTER_RUN_DIR", "MUSTER_DATA", "WORLD_SIZE"} < names
    for name in names:
        with pytest.raises(UsageError, match=f"^--env {name}: "):
            make_config(ProgramConfig, env=f"{name}=1")
        (tmp_path / "env").write_text(f"{name}=1\n")
        with pytest.raises(UsageError, match=f"/env: {name}: "):
            make_config(ProgramConfig, env_file=tmp_path / "env").variables({})


def test_a_card_that_the_node_lacks_is_named_with_its_variable(tmp_path):
    given = replace(assignment(tmp_path), ranks=(0, 1), name="node1")
    with pytest.raises(MusterError) as caught:
        refuse_absent_interface(given, {"GLOO_SOCKET_IFNAME": "^lo,docker0"})
    line = str(caught.value)
    assert line.startswith("GLOO_SOCKET_IFNAME is set to ^lo,docker0 on node1, which has ")
    refuse_absent_interface(given, {"GLOO_SOCKET_IFNAME": "lo"})
    alone = replace(given, ranks=(0,), counts=(1,))
    refuse_absent_interface(alone, {"GLOO_SOCKET_IFNAME": "^lo"})


def test_loopback_interface_is_refused_on_several_machines(tmp_path, monkeypatch):
    own = {"lo": ["127.0.0.1", "::1"], "lo1": ["127.0.0.9"], "exp0": ["10.0.0.1"], "ib0": []}
    own["routed"] = ["127.0.0.1", "10.9.0.1"]  # other machines reach its second address
    cards = {
        name: [SimpleNamespace(family=AF_INET6 if ":" in each else AF_INET, address=each)
               for each in addresses]
        for name, addresses in own.items()
    }  # fmt: skip
    monkeypatch.setattr("psutil.net_if_addrs", lambda: cards)
    here = replace(assignment(tmp_path), counts=(1, 1), name="node1")
    several = replace(here, coordinator_address="10.0.0.2")
    for name in ("lo", "lo1", "exp0,lo"):
        refuse_absent_interface(here, {"GLOO_SOCKET_IFNAME": name})
        with pytest.raises(MusterError) as caught:
            refuse_absent_interface(several, {"GLOO_SOCKET_IFNAME": name})
        assert str(caught.value) == (
            f"GLOO_SOCKET_IFNAME is set to {name} on node1, which has exp0, ib0, routed to reach "
            "other machines; set it to one of these, or leave it unset for Muster to choose"
        )
    for name in ("exp0", "routed"):
        refuse_absent_interface(several, {"GLOO_SOCKET_IFNAME": name})


def test_a_python_that_a_node_lacks_is_refused_by_its_flag(tmp_path):
    given = assignment(tmp_path)
    spec = replace(given.spec, program=Program(("t.py",), python="nopython"))
    commands = (NodeCommand("localhost", 0, ("nopython", "t.py"), {}, "/"),)
    with pytest.raises(UsageError, match=r"^--python nopython: no such program"):
        start_workload(replace(given, spec=spec, commands=commands), 1, {}, WarmInterpreter())
