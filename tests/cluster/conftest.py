"""One bed for all tests of this folder, and others in between for those that ask."""

import os
from collections.abc import Callable, Iterator

import pytest

from configs.errors import MusterError
from launch.virtual_cluster.commands import refuse_unfit_box
from tests.cluster import ways
from tests.cluster.beds import TestBed, bring_up, take_down
from tests.preload import OWN_BOX, interpreter

USUAL = ("--nodes", "4")


@pytest.fixture(scope="session")
def _fit_box() -> None:
    try:
        refuse_unfit_box()
    except MusterError as error:
        pytest.skip("; ".join(str(error).splitlines()))
    if "PYTEST_XDIST_WORKER" in os.environ and not OWN_BOX.exists():
        pytest.skip("there is one bed per box: run tests/cluster by make test-cluster, or alone")


@pytest.fixture(scope="session")
def _usual_bed(_fit_box: None) -> Iterator[TestBed]:
    yield bring_up(*USUAL)
    take_down()


@pytest.fixture
def bed(_usual_bed: TestBed) -> TestBed:
    """The usual bed of four nodes; whatever a test did to its daemons, they are alive again."""
    return bring_up(*USUAL)


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nodes start begins at once; not for tests that look at whose child a process is."""
    monkeypatch.setitem(ways.PYTHON, "MUSTER_PYTHON", interpreter())


@pytest.fixture
def other_bed(bed: TestBed) -> Iterator[Callable[..., TestBed]]:
    """Has a bed with other flags up until the test is over: `other_bed("--rate", "100mbit")`."""

    def change(*flags: str, env: dict[str, str] | None = None) -> TestBed:
        take_down()
        return bring_up(*flags, env=env)

    yield change
    take_down()
    bring_up(*USUAL)
