"""One testbed for all tests of this folder, and others in between for those that ask."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests import required
from tests.cluster import ways
from tests.cluster.laptops import Laptop
from tests.cluster.testbeds import Cluster, bring_up, take_down
from tests.environments import paced_python
from tests.fork_server import OWN_BOX, interpreter


@pytest.fixture(scope="session")
def _fit_box() -> None:
    required.need(*required.TESTBED)
    if "PYTEST_XDIST_WORKER" in os.environ and not OWN_BOX.exists():
        pytest.skip(
            "there is one testbed per box: run tests/cluster by make test-cluster, or alone"
        )


@pytest.fixture(scope="session")
def _testbed(_fit_box: None) -> Iterator[Callable[..., Cluster]]:
    """Has a testbed up, a new one but where tests share one by its name; at the end none is."""
    up = [""]

    def have(name: str, *flags: str, **env: str) -> Cluster:
        if name != up[0] or not name:
            take_down()
        up[0] = name
        return bring_up(*flags, env=env)

    yield have
    take_down()


@pytest.fixture
def cluster(_testbed: Callable[..., Cluster]) -> Cluster:
    """The usual testbed of four nodes; whatever a test did to its daemons, they are alive."""
    return _testbed("usual", "--nodes", "4")


# Begun last, one of these tests would keep all but one process waiting.
LONGEST_FIRST = (
    "test_faults.py", "test_slurm_jobs.py", "test_hangs.py", "test_bad_nodes.py",
    "test_functions.py", "test_inside_a_job.py", "test_ways.py", "test_sweeps.py",
    "test_doctor.py", "test_slurm_answers.py", "test_other_programs.py", "test_ends.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those on the usual testbed, those on two nodes apart, then those that make their own."""
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}

    def order(item: pytest.Item) -> tuple[int, int]:
        wanted = getattr(item, "fixturenames", ())
        testbed = 2 if "other_cluster" in wanted else 1 if "apart" in wanted else 0
        return testbed, rank.get(item.path.name, len(rank))

    items.sort(key=order)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes start begins at once; not for tests that look at whose child a process is."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", interpreter())


@pytest.fixture(scope="session")
def _paced_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(paced_python(tmp_path_factory.mktemp("paced")))


@pytest.fixture
def paced(_paced_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes have a Python with the task that trains without an end."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", _paced_python)


@pytest.fixture
def other_cluster(_testbed: Callable[..., Cluster]) -> Callable[..., Cluster]:
    """Has a testbed of its own up, new, for this test: `other_cluster("--rate", "100mbit")`.

    What it leaves goes when the next test asks for a testbed.
    """
    return partial(_testbed, "")


@pytest.fixture
def apart(_testbed: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two nodes with disks and environments of their own, and a network for logins beside."""
    monkeypatch.delitem(ways.PYTHON, "MUSTER_PYTHON")  # that of ~/muster/.venv
    flags = ("--nodes", "2", "--private-home", "--control-network")
    return _testbed("apart", *flags, MUSTER_BED_VENV=sys.prefix)


@pytest.fixture
def jobs(cluster: Cluster, tmp_path: Path) -> Callable[..., str]:
    """What `muster jobs` says of the runs of this test."""
    return partial(ways.jobs, cluster, "--logs-dir", str(tmp_path))


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
def laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(cluster, tmp_path)
    yield made
    made.end()


@pytest.fixture
def held(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A job of four nodes, as a shell in it sees it, with a step beside the run's."""
    done = cluster.run("salloc", "--nodes=4", "--no-shell", "--job-name=held")
    (job_id,) = re.findall(r"Granted job allocation (\d+)", done.stderr)
    step = ["srun", f"--jobid={job_id}", "--nodes=4", "--ntasks=4", "--job-name=other"]
    other = ways.start(cluster, [*step, "sleep", "10000"])
    monkeypatch.setitem(ways.PYTHON, "SLURM_JOB_ID", job_id)
    yield job_id
    assert other.poll() is None, "a step that was not the run's has ended with it"
    ways.cancel_all(cluster)
    ways.finish(other)
