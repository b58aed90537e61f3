"""Which Python scripts start if they have none yet, and where an installation has its runs."""

import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest

from muster import checkout, run_files
from muster.checkout import CHECKOUT
from tests.commands import call
from tests.written import executable

SCRIPT = "launch/own_python.sh"
HAS_PACKAGES = "#!/bin/sh\nexit 0\n"
LACKS_THEM = "#!/bin/sh\nexit 1\n"


def python_of(root: Path, **env: str) -> tuple[int, str, str]:
    """Run the script in `root`, with only `root/bin` and the needed tools on PATH."""
    target = root / SCRIPT
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(CHECKOUT / SCRIPT, target)
    tools = root / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "dirname", "readlink"):
        (tools / name).symlink_to(str(shutil.which(name)))
    variables = {"PATH": f"{root / 'bin'}:{tools}", **env}
    words = [f"{name}={value}" for name, value in variables.items()]
    done = call("/usr/bin/env", "--ignore-environment", *words, "bash", SCRIPT, cwd=root)
    return done.returncode, done.stdout.strip(), done.stderr


def test_the_named_python_is_taken_and_a_wrong_name_is_refused(tmp_path):
    root = tmp_path / "a checkout"
    executable(root / ".venv/bin/python", HAS_PACKAGES)
    assert python_of(root, MUSTER_PYTHON=sys.executable)[:2] == (0, sys.executable)
    shutil.rmtree(root / "tools")
    code, out, err = python_of(root, MUSTER_PYTHON="/nowhere/$(touch pwned)")
    assert (code, out) == (2, "")
    assert (
        "MUSTER_PYTHON=/nowhere/$(touch pwned): no such program" in err
        and not (root / "pwned").exists()
    )


def test_the_environment_of_a_checkout_is_taken_before_others(tmp_path):
    own = executable(tmp_path / ".venv/bin/python", HAS_PACKAGES)
    executable(tmp_path / "bin/python3", HAS_PACKAGES)
    assert python_of(tmp_path)[:2] == (0, str(own))


def test_environment_without_packages_is_passed_over(tmp_path, monkeypatch):
    """An interrupted installation leaves such an environment."""
    executable(tmp_path / ".venv/bin/python", LACKS_THEM)
    other = executable(tmp_path / "bin/python3", HAS_PACKAGES)
    assert python_of(tmp_path)[:2] == (0, str(other))
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    assert checkout.own_python() == sys.executable


def test_a_checkout_without_one_takes_that_of_the_muster_command(tmp_path):
    """`uv tool install -e` and `pipx install -e` make such a link to an environment elsewhere."""
    own = executable(tmp_path / "tools of uv/muster/bin/python", HAS_PACKAGES)
    command = executable(own.with_name("muster"), HAS_PACKAGES)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/muster").symlink_to(command)
    assert python_of(tmp_path)[:2] == (0, str(own))


def test_exported_cdpath_changes_no_folder(tmp_path):
    """With CDPATH, `cd` prints the folder, and may enter another one with the same name."""
    own = executable(tmp_path / ".venv/bin/python", HAS_PACKAGES)
    assert python_of(tmp_path, CDPATH=f"{tmp_path}:.")[:2] == (0, str(own))
    texts = [path for each in ("launch", "slurm") for path in (CHECKOUT / each).rglob("*.sh")]
    texts += (CHECKOUT / "launch" / "ssh").rglob("*.py")
    plain = re.compile(r"""^(?!\s*#).*(?<!CDPATH= )(?<!CDPATH='' )\bcd (--|"\$)""", re.MULTILINE)
    assert not [text for text in texts if plain.search(text.read_text())]


def test_python_without_packages_is_refused_with_make_command(tmp_path):
    executable(tmp_path / "bin/python3", LACKS_THEM)
    code, out, err = python_of(tmp_path)
    assert (code, out) == (2, "")
    own = f"{tmp_path}/.venv/bin/python"
    assert f"no Python with Muster's packages at {own}\ntip: run: make -C {tmp_path}" in err


@pytest.mark.parametrize("lib", ["lib", "lib64"])
def test_an_installation_takes_that_of_its_prefix(tmp_path, lib):
    own = executable(tmp_path / "bin/python3.12", HAS_PACKAGES)
    executable(tmp_path / "bin/python", HAS_PACKAGES)  # in /usr or ~/.local, may be another Python
    root = tmp_path / lib / "python3.12" / "site-packages" / "muster" / "_checkout"
    assert python_of(root)[:2] == (0, str(own))


def test_an_installation_of_the_systems_python_takes_that_version(tmp_path):
    """As with `pip install --user`, whose prefix has no Python."""
    root = tmp_path / "lib" / "python3.12" / "site-packages" / "muster" / "_checkout"
    executable(root / "bin/python3", LACKS_THEM)
    systems = executable(root / "bin/python3.12", HAS_PACKAGES)
    assert python_of(root)[:2] == (0, str(systems))


def test_muster_itself_takes_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(checkout, "CHECKOUT", tmp_path)
    monkeypatch.setattr(checkout, "IS_INSTALLED", False)
    assert checkout.own_python() == sys.executable
    own = executable(tmp_path / ".venv/bin/python", HAS_PACKAGES)
    assert checkout.own_python() == str(own)
    root = tmp_path / "lib" / "python3.12" / "site-packages" / "muster" / "_checkout"
    monkeypatch.setattr(checkout, "CHECKOUT", root)
    monkeypatch.setattr(checkout, "IS_INSTALLED", True)
    assert checkout.own_python() == sys.executable  # there is none at its prefix
    own = executable(tmp_path / "bin/python3.12", HAS_PACKAGES)
    executable(tmp_path / "bin/python", HAS_PACKAGES)
    assert checkout.own_python() == str(own)
    monkeypatch.setattr(checkout, "CHECKOUT", Path("/target/a/b/muster/_checkout"))
    assert checkout.own_python() == sys.executable


@pytest.mark.parametrize(("place", "is_installed"), [("clone", False), ("muster", True)])
def test_a_clone_with_the_name_of_an_installations_folder_is_none(tmp_path, place, is_installed):
    package = tmp_path / place / "_checkout" / "muster"
    for folder in (package, package.parents[1] if is_installed else package):
        (folder / "worker").mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / "muster/checkout.py", folder)
        shutil.copy(CHECKOUT / "muster/worker/process.py", folder / "worker")
    values = runpy.run_path(str(package / "worker" / "process.py"))
    assert (values["CHECKOUT"], values["IS_INSTALLED"]) == (package.parent, is_installed)


@pytest.mark.parametrize(("named", "taken"), [("/opt/python", "/opt/python"), ("", "own")])
def test_a_named_python_is_that_of_nodes(monkeypatch, named, taken):
    monkeypatch.setattr(checkout, "own_python", lambda: "own")
    monkeypatch.setenv("MUSTER_PYTHON", named)
    assert checkout.nodes_python() == taken


def test_an_installation_has_its_runs_where_it_is_called(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_files.own_logs() == CHECKOUT / "logs"
    monkeypatch.setattr(checkout, "IS_INSTALLED", True)
    assert run_files.own_logs() == Path.cwd() / "logs"
