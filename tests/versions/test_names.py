"""Every name of torch that the library uses is in torch 2.6, or something stands in for it."""

import pytest
import torch

from tests.versions import names
from tests.versions.__main__ import TESTS
from tests.versions.instead import NEWER, PRIVATE
from tests.versions.names import Table, used

pytestmark = pytest.mark.slow

ADVICE = "look new names up in torch 2.6, as `make versions ARGS=2.6.0` does"


def test_every_name_has_been_looked_up():
    versions, lacking = Table.read()
    assert versions[0] == "2.6.0"
    assert sorted(used() ^ lacking.keys()) == [], ADVICE


def test_what_torch_2_6_lacks_and_what_is_private_has_a_stand_in():
    lacking = {name for name, without in Table.read().lacking.items() if without}
    private = {name for name in used() if names.is_private(name)}
    assert sorted((lacking - private) ^ NEWER.keys()) == []
    assert sorted(private ^ PRIVATE.keys()) == []


def test_the_names_are_those_of_the_torch_that_is_here():
    versions, lacking = Table.read()
    here = torch.__version__.partition("+")[0]
    assert here in versions
    of_other_builds = () if torch.distributed.is_nccl_available() else names.OF_NCCL
    for name in used().difference(of_other_builds):
        assert names.lacks(name) is (here in lacking[name]), name


def test_the_tests_that_run_on_every_version_are_where_they_are_looked_for():
    assert [one for one in TESTS if not (names.REPOSITORY / one).exists()] == []
