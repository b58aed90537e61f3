"""One testbed for all tests of this folder, and others in between for those that ask."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from launch.virtual_cluster.commands import refuse_unfit_box
from muster.errors import MusterError
from tests.cluster import ways
from tests.cluster.laptops import Laptop
from tests.cluster.testbeds import Cluster, bring_up, take_down
from tests.preload import OWN_BOX, interpreter

USUAL = ("--nodes", "4")


@pytest.fixture(scope="session")
def _fit_box() -> None:
    try:
        refuse_unfit_box()
    except MusterError as error:
        pytest.skip("; ".join(str(error).splitlines()))
    if "PYTEST_XDIST_WORKER" in os.environ and not OWN_BOX.exists():
        pytest.skip(
            "there is one testbed per box: run tests/cluster by make test-cluster, or alone"
        )


@pytest.fixture(scope="session")
def _testbed(_fit_box: None) -> Iterator[list[str]]:
    """Whose testbed is up: that of the tests which share one, or nobody's; none is, at the end."""
    yield []
    take_down()


@pytest.fixture
def cluster(_testbed: list[str]) -> Cluster:
    """The usual testbed of four nodes; whatever a test did to its daemons, they are alive."""
    if _testbed != ["usual"]:
        take_down()
        _testbed[:] = ["usual"]
    return bring_up(*USUAL)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes start begins at once; not for tests that look at whose child a process is."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", interpreter())


@pytest.fixture
def other_cluster(_testbed: list[str]) -> Callable[..., Cluster]:
    """Has a testbed of its own up, new, for this test: `other_cluster("--rate", "100mbit")`.

    What it leaves goes when the next test asks for a testbed.
    """
    _testbed.clear()

    def change(*flags: str) -> Cluster:
        _testbed.clear()
        take_down()
        return bring_up(*flags)

    return change


@pytest.fixture
def apart(_testbed: list[str], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two nodes with disks and environments of their own, and a network for logins beside."""
    monkeypatch.delitem(ways.PYTHON, "MUSTER_PYTHON")  # that of ~/muster/.venv
    if _testbed != ["apart"]:
        take_down()
        _testbed[:] = ["apart"]
    flags = ("--nodes", "2", "--private-home", "--control-network")
    return bring_up(*flags, env={"MUSTER_BED_VENV": sys.prefix})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of the user's, with the names that this one has, too."""
    root = tmp_path / "project"
    shutil.copytree(ways.PROGRAMS, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("logs/\n")
    if shutil.which("git"):  # on another Slurm's system there may be none, nor need it be
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def new_laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[..., Laptop]]:
    with ExitStack() as ends:

        def new(number: int = 0) -> Laptop:
            made = Laptop(cluster, tmp_path, number)
            ends.callback(made.end)
            return made

        yield new


@pytest.fixture
def laptop(new_laptop: Callable[..., Laptop]) -> Laptop:
    return new_laptop()
