"""Every name of torch that the library uses is in torch 2.6, or something stands in for it."""

import pytest
import torch

from tests.versions import names
from tests.versions.__main__ import TESTS
from tests.versions.instead import NEWER, PRIVATE
from tests.versions.names import Table, numbers, used

OLDEST = "2.6.0"
ADVICE = "look new names up in torch 2.6, as `make versions ARGS=2.6.0` does"


def test_every_name_has_been_looked_up():
    assert sorted(used() ^ Table.read().lacking.keys()) == [], ADVICE


def test_what_torch_2_6_lacks_and_what_is_private_has_a_stand_in():
    lacking = {name for name, without in Table.read().lacking.items() if without}
    private = {name for name in used() if names.is_private(name)}
    assert sorted((lacking - private) ^ NEWER.keys()) == []
    assert sorted(private ^ PRIVATE.keys()) == []


@pytest.mark.parametrize("name", [*NEWER, *PRIVATE])
def test_the_first_version_with_a_name_is_the_one_that_was_found(name):
    versions, lacking = Table.read()
    first = numbers({**NEWER, **PRIVATE}[name].first)
    later = {version for version in versions if numbers(version) >= first}
    assert versions[0] == OLDEST
    assert not later & {*lacking[name]}


def test_the_names_are_those_of_the_torch_that_is_here():
    own = numbers(torch.__version__)
    for name in sorted(used()):
        first = numbers(NEWER[name].first if name in NEWER else OLDEST)
        if name not in PRIVATE or PRIVATE[name].first == "2.6":
            assert names.lacks(name) is (own[:2] < first[:2]), name


def test_the_tests_that_run_on_every_version_are_where_they_are_looked_for():
    assert [one for one in TESTS if not (names.REPOSITORY / one).exists()] == []
