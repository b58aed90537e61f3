"""One testbed for all tests of this folder, and others in between for those that ask."""

import os
from collections.abc import Callable, Iterator

import pytest

from launch.virtual_cluster.commands import refuse_unfit_box
from muster.errors import MusterError
from tests.cluster import ways
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
def _usual_cluster(_fit_box: None) -> Iterator[Cluster]:
    yield bring_up(*USUAL)
    take_down()


@pytest.fixture
def cluster(_usual_cluster: Cluster) -> Cluster:
    """The usual testbed of four nodes; whatever a test did to its daemons, they are alive."""
    return bring_up(*USUAL)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes start begins at once; not for tests that look at whose child a process is."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", interpreter())


@pytest.fixture
def other_cluster(cluster: Cluster) -> Iterator[Callable[..., Cluster]]:
    """Has another testbed up until the test is over: `other_cluster("--rate", "100mbit")`."""

    def change(*flags: str, env: dict[str, str] | None = None) -> Cluster:
        take_down()
        return bring_up(*flags, env=env)

    yield change
    take_down()
    bring_up(*USUAL)
