"""A run's name is the name of a single folder."""

import os
from pathlib import Path

import pytest
from hypothesis import strategies as st

from configs.settings.launch import RunConfig, name_problems
from muster.errors import UsageError
from tests.fuzzing import fuzzed


@pytest.mark.parametrize("name", ["../x", ".x", "-x", "a/b", "a%b", "a b", "ä", "x" * 241, ""])
def test_a_run_s_name_is_that_of_one_folder(name):
    with pytest.raises(UsageError, match="--run-id"):
        RunConfig(run_id=name)


@fuzzed(st.text() | st.text("abz09._-+=", max_size=300))
def test_accepted_run_name_stays_in_logs_and_has_no_pattern(name):
    if list(name_problems("", name)):
        return
    folder = (Path("/logs") / name).resolve()
    assert folder.parent == Path("/logs") and folder.name == name
    assert not set(name) & set("%\\/ ") and len(os.fsencode(name)) < 255
