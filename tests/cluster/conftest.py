"""One testbed for all tests of this folder, and others for tests that ask for them."""

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
    """A function that brings up a testbed: a new one, unless tests share it by name."""
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
    """The usual testbed of four nodes; its daemons are alive, whatever an earlier test did."""
    return _testbed("usual", "--nodes", "4")


# These files come first: if one began last, all other processes would wait for it.
LONGEST_FIRST = (
    "test_faults.py", "test_slurm_jobs.py", "test_hangs.py", "test_bad_nodes.py",
    "test_functions.py", "test_inside_a_job.py", "test_ways.py", "test_sweeps.py",
    "test_doctor.py", "test_slurm_answers.py", "test_other_programs.py", "test_ends.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort tests: first the usual testbed, then two nodes apart, then testbeds of their own."""
    rank = {name: number for number, name in enumerate(LONGEST_FIRST)}

    def order(item: pytest.Item) -> tuple[int, int]:
        wanted = getattr(item, "fixturenames", ())
        testbed = 2 if "other_cluster" in wanted else 1 if "apart" in wanted else 0
        return testbed, rank.get(item.path.name, len(rank))

    items.sort(key=order)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nodes fork workers, which starts faster; not for tests that look at parents."""
    python = interpreter()
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", python)
    # for the workers of programs that are not Muster's own
    monkeypatch.setitem(ways.PYTHON, "PATH", f"{Path(python).parent}:{os.environ['PATH']}")


@pytest.fixture(scope="session")
def _paced_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(paced_python(tmp_path_factory.mktemp("paced")))


@pytest.fixture
def paced(_paced_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give nodes a Python with the task `paced`, which trains without end."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", _paced_python)


@pytest.fixture
def other_cluster(_testbed: Callable[..., Cluster]) -> Callable[..., Cluster]:
    """Bring up a new testbed for this test alone: `other_cluster("--rate", "100mbit")`.

    It is taken down when the next test asks for a testbed.
    """
    return partial(_testbed, "")


@pytest.fixture
def apart(_testbed: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Two nodes with their own disks and environments, and a separate network for logins."""
    monkeypatch.delitem(ways.PYTHON, "MUSTER_PYTHON")  # theirs is in ~/muster/.venv
    flags = ("--nodes", "2", "--private-home", "--control-network")
    return _testbed("apart", *flags, MUSTER_BED_VENV=sys.prefix)


@pytest.fixture
def jobs(cluster: Cluster, tmp_path: Path) -> Callable[..., str]:
    """A function that calls `muster jobs` for this test's runs and returns its output."""
    return partial(ways.jobs, cluster, "--logs-dir", str(tmp_path))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's repository, in which some names are the same as in this one."""
    root = tmp_path / "project"
    shutil.copytree(ways.PROGRAMS, root, ignore=shutil.ignore_patterns("__pycache__"))
    (root / ".gitignore").write_text("logs/\n")
    if shutil.which("git"):  # a system with another Slurm may lack it, which is fine
        subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


@pytest.fixture
def laptop(cluster: Cluster, tmp_path: Path) -> Iterator[Laptop]:
    made = Laptop(cluster, tmp_path)
    yield made
    made.end()


@pytest.fixture
def held(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Hold a job of four nodes, as a shell inside it would, with a step beside the run's."""
    done = cluster.run("salloc", "--nodes=4", "--no-shell", "--job-name=held")
    (job_id,) = re.findall(r"Granted job allocation (\d+)", done.stderr)
    step = ["srun", f"--jobid={job_id}", "--nodes=4", "--ntasks=4", "--job-name=other"]
    other = ways.start(cluster, [*step, "sleep", "10000"])
    monkeypatch.setitem(ways.PYTHON, "SLURM_JOB_ID", job_id)
    yield job_id
    assert other.poll() is None, "a step that was not the run's has ended with it"
    ways.cancel_all(cluster)
    ways.finish(other)
