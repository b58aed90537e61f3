"""Muster from a wheel, without its checkout: a user's program runs and finds its own modules."""

import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests import installations
from tests.commands import call
from tests.fork_server import skip_if_quick
from tests.installations import Installation
from tests.written import write

FOLDERS = ("configs", "launch", "muster", "slurm", "train")
# Further files of a checkout, with which a node or a login node makes an environment.
MORE = {
    *("Makefile", "constraints.txt", "pyproject.toml", "README.md", "LICENSE", "setup.cfg"),
    *("setup.py", "logs/.gitkeep"),
}
# A user's project whose modules have the same names as Muster's.
PROJECT = {
    "configs/__init__.py": "OWNER = 'user'",
    "launch/__init__.py": "OWNER = 'user'",
    "train/__init__.py": "OWNER = 'user'",
    "train.py": """
import importlib.util, os, sys
import configs, launch, train
import muster

print("owners", configs.OWNER, launch.OWNER, train.OWNER)
print("python", sys.executable)
print("muster", muster.__path__[0], muster.stopping())
print("has", [name for name in ("msgspec", "yaml", "submitit") if importlib.util.find_spec(name)])
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])
""",
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return write(tmp_path / "project", PROJECT)


def test_a_wheel_has_the_tracked_files_alone(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    packages = {name for name in names if ".dist-info/" not in name}
    tracked = {name for name in installations.tracked() if name.startswith(FOLDERS)}
    checkout = {
        f"muster/_checkout/{name}"
        for name in (*tracked, *MORE)
        if name.startswith(tuple(f"{folder}/" for folder in FOLDERS)) or name in MORE
    }
    importable = {name for name in tracked if name.startswith("muster/")}
    assert packages == checkout | importable


def test_own_program_under_another_python_finds_its_own_names(installed, outside, tmp_path):
    skip_if_quick()
    venv.create(tmp_path / "other", symlinks=True)
    other = tmp_path / "other" / "bin" / "python"
    before = installed.files()
    flags = ["--launcher", "local", "--nodes", "2", "--workers", "manual", "--python", other]
    done = call(installed.muster, "run", *flags, "--", "train.py", cwd=outside)
    assert done.returncode == 0, done.stderr
    assert "owners user user user" in done.stdout
    assert f"python {other}\n" in done.stdout
    assert "has []" in done.stdout and "rank 0 of 2" in done.stdout
    (run_dir,) = (outside / "logs").glob("*/job.json")
    shown = call(installed.muster, "jobs", "list", cwd=outside).stdout  # from its records
    assert run_dir.parent.name in shown
    assert installed.files() == before


def test_the_trainer_writes_into_the_project_and_not_into_the_installation(installed, outside):
    flags = ["--launcher", "local", "--nodes", "2", "--workers", "manual", "--dry-run"]
    flags += ["--python", sys.executable]  # which has the trainer's packages
    done = call(installed.muster, "run", *flags, "--run-id", "first", cwd=outside)
    assert done.returncode == 0, done.stderr
    assert f"--logs-dir={outside}/logs" in done.stdout
    study = f"{_path(installed)}/configs/studies/quick.yaml"
    done = call(installed.muster, "study", study, "--dry-run", cwd=outside)
    assert f"--logs-dir={outside}/logs/studies/quick/runs" in done.stdout


def test_the_folder_of_scripts_is_printed_and_nothing_else(installed):
    assert (Path(_path(installed)) / "slurm" / "multinode.sh").exists()
    assert call(installed.muster, "path", "--help").stdout.startswith("usage: muster path\n")
    done = call(installed.muster, "path", "slurm")
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("error: ")


def test_scripts_of_an_installation_find_its_python(installed):
    script = f"{_path(installed)}/launch/own_python.sh"
    done = call("env", "--ignore-environment", "PATH=/usr/bin:/bin", "bash", script)
    python = Path(done.stdout.rstrip("\n"))
    assert (done.returncode, python.parent) == (0, installed.python.parent), done.stderr


@pytest.mark.slow
def test_an_editable_installation_hides_no_name_of_a_users(outside, tmp_path):
    source = installations.clone(tmp_path / "a clone")
    editable = installations.install(tmp_path / "env", "--editable", str(source))
    assert _path(editable) == str(source)
    found = "import importlib.util as util, muster; print(*map(util.find_spec, {}))".format(
        ("configs", "launch", "train")
    )
    done = call(editable.python, "-c", found, cwd="/")
    assert done.stdout == "None None None\n", done.stderr
    done = call(editable.muster, "run", "--dry-run", "--launcher", "local", "--workers", "manual",
                "--python", sys.executable, "--", "train.py", cwd=outside)  # fmt: skip
    assert done.returncode == 0, done.stderr


def _path(installation: Installation) -> str:
    return call(installation.muster, "path").stdout.rstrip("\n")
