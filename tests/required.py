"""What some tests need beside Python: where it can be installed, they may not be skipped."""

import os

import pytest


def missing(message: str) -> None:
    """Skip this test; with REQUIRE_ALL set, as `.ci/run` does, have it fail.

    Raises:
        pytest.skip.Exception: always, or
        pytest.fail.Exception: where nothing may be skipped.
    """
    (pytest.fail if os.environ.get("REQUIRE_ALL") else pytest.skip)(message)
