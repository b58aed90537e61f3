"""`make test` runs both halves of the tests, and fails where one of them has failed.

`make packages` installs what they need.
"""

import shutil
from pathlib import Path

import pytest

from tests.commands import call
from tests.required import PACKAGES
from tests.written import executable

REPOSITORY = Path(__file__).parents[1]
# In the order in which `make` looks at their ages.
FILES = "setup.cfg pyproject.toml constraints.txt .venv/pyvenv.cfg .venv/.torch-index"
PYTHON = """#!/bin/sh
case "$*" in
*--ignore=tests/cluster*) echo here >> halves; exit {here} ;;
*tests/cluster*) echo cluster >> halves; exit {cluster} ;;
esac
"""


@pytest.mark.parametrize(("here", "cluster"), [(0, 0), (1, 0), (0, 1), (1, 5)])
def test_both_halves_are_run_and_either_one_fails_it(tmp_path, here, cluster):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON.format(here=here, cluster=cluster))
    python.chmod(0o755)
    for name in (*FILES.split(), ".venv/.installed-test"):
        (tmp_path / name).touch()
    done = call("make", "test", cwd=tmp_path)
    assert (tmp_path / "halves").read_text() == "here\ncluster\n", done.stderr
    assert (done.returncode == 0) is (here == cluster == 0), done.stderr


def test_install_brings_the_trainer_and_reports():
    shown = call("make", "--dry-run", "--always-make", "install", cwd=REPOSITORY)
    assert '--editable ".[trainer,report]"' in shown.stdout, shown.stderr


DEBIAN = {
    "dpkg-query": "[[ $* == *munge ]] && echo installed || echo not-installed",
    "apt-cache": "[[ $* == *chromium* ]] && echo 'Candidate: (none)' || echo 'Candidate: 1.0'",
    "apt-get": 'echo "$*" >> asked',
    "python3.99": "echo python3.99-dev",
}


def test_packages_installs_what_tests_need_and_the_system_has(tmp_path, monkeypatch):
    shutil.copy(REPOSITORY / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in DEBIAN.items():
        executable(tmp_path / "bin" / name, f"#!/usr/bin/env bash\n{text}\n")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    done = call("make", "packages", "PYTHON=python3.99", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    update, install = (tmp_path / "asked").read_text().splitlines()
    assert update.startswith("update ") and install.startswith("install ")
    installed = {word for word in install.split() if not word.startswith("-")} - {"install"}
    absent = {"munge", "chromium", "chromium-driver", "python3-dev"}
    assert installed >= {*PACKAGES.values(), "python3.99-dev"} - absent
    assert not installed & absent
    assert "there is no package chromium here: its tests stay skipped" in done.stderr


def test_without_apt_packages_says_what_to_install(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "bash"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = call("make", "-f", REPOSITORY / "Makefile", "packages", env={"PATH": str(tools)})
    assert done.returncode == 2
    assert "there is no apt-get; install what the last lines of make test name" in done.stderr
