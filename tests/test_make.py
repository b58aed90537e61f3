"""`make test`, `test-slow` and `test-all` run both halves of their tests, and fail if either fails.

`make packages` installs what the tests need.
"""

import re
import shutil

import pytest

from muster.checkout import CHECKOUT
from tests.commands import call
from tests.required import PACKAGES
from tests.written import executable

# In the order in which `make` compares their ages.
FILES = "setup.cfg pyproject.toml constraints.txt .venv/pyvenv.cfg .venv/.torch-index"
# A stand-in for Python that records for which half of the tests and with which marks it is called.
PYTHON = """#!/bin/sh
last= marks=
for word; do
    [ "$last" != -m ] || marks=$word
    last=$word
done
case "$*" in
*--quick*) half=quick code=0 ;;
*--ignore=tests/cluster*) half=here code={here} ;;
*tests/cluster*) half=cluster code={cluster} ;;
esac
echo "$half: $marks" >> halves
exit "$code"
"""
WITHOUT = [f"--unset={name}" for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "WHICH")]
MARKS = {"test": "not slow", "test-slow": "slow", "test-all": ""}


@pytest.fixture
def make(tmp_path):
    """Return a function that calls make, whose halves end with the given codes.

    It returns make's exit code and a line for each half that was called.
    """
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
    python = tmp_path / ".venv" / "bin" / "python"

    def called(*words, here=0, cluster=0):
        executable(python, PYTHON.format(here=here, cluster=cluster))
        for name in (*FILES.split(), ".venv/.installed-test"):
            (tmp_path / name).touch()
        # as from a shell: these tests may be run by make itself
        done = call("env", *WITHOUT, "make", *words, cwd=tmp_path)
        return done.returncode, (tmp_path / "halves").read_text().splitlines()

    return called


@pytest.mark.parametrize(("here", "cluster"), [(0, 0), (1, 0), (0, 1), (1, 5)])
@pytest.mark.parametrize("target", MARKS)
def test_both_halves_are_run_once_and_either_one_fails_it(make, target, here, cluster):
    code, halves = make(target, here=here, cluster=cluster)
    assert halves == [f"{half}: {MARKS[target]}" for half in ("here", "cluster")]
    assert (code == 0) is (here == cluster == 0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("test-quick", "quick: not slow"),
        ("test-here", "here: "),
        ("test-cluster", "cluster: "),
        ("test-cluster WHICH=slow", "cluster: slow"),
    ],
)
def test_make_test_here_runs_all_or_the_marks_asked_for(make, words, found):
    assert make(*words.split()) == (0, [found])


def test_ci_runs_all_tests_once_and_make_test_first():
    """`make test` comes first, so that it has only what it installs itself."""
    script = (CHECKOUT / ".ci" / "run").read_text()
    targets = re.findall(r"^ *make ([\w-]+)", script, re.M)
    assert targets == ["packages", "test", "check", "test-slow"]


def test_install_brings_the_trainer_and_reports():
    shown = call("make", "--dry-run", "--always-make", "install", cwd=CHECKOUT)
    assert '--editable ".[trainer,report]"' in shown.stdout, shown.stderr


DEBIAN = {
    "dpkg-query": "[[ $* == *munge ]] && echo installed || echo not-installed",
    "apt-cache": "[[ $* == *chromium* ]] && echo 'Candidate: (none)' || echo 'Candidate: 1.0'",
    "apt-get": 'echo "$*" >> asked',
    "python3.99": "echo python3.99-dev",
}


def test_packages_installs_what_tests_need_and_the_system_has(tmp_path, monkeypatch):
    shutil.copy(CHECKOUT / "Makefile", tmp_path)
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
    assert "package chromium not found" in done.stderr


def test_without_apt_packages_says_what_to_install(tmp_path):
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("make", "bash"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = call("make", "-f", CHECKOUT / "Makefile", "packages", env={"PATH": str(tools)})
    assert done.returncode == 2
    assert "apt-get not found" in done.stderr and "make test" in done.stderr
