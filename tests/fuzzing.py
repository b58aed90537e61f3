"""Tests of what others may write: few examples in the suite, many in `make soak`.

In the suite the examples are the same each time: what fails is the last change's. A soak draws new
ones.
"""

import os
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest

# How many examples each fuzzer tries in a soak; empty in the suite.
SOAK_EXAMPLES = os.environ.get("SOAK_EXAMPLES", "")


def fuzzed(*given: Any, examples: int = 50, **given_by_name: Any) -> Callable[[Any], Any]:
    """`hypothesis.given` with so many `examples` in the suite, and `SOAK_EXAMPLES` in a soak."""

    def decorate(test: Any) -> Any:
        settings = hypothesis.settings(
            max_examples=int(SOAK_EXAMPLES or examples),
            derandomize=not SOAK_EXAMPLES,
            deadline=None,
            suppress_health_check=list(hypothesis.HealthCheck),
            # to explain a failure, hypothesis traces every line: ten times slower
            phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
        )
        return pytest.mark.fuzz(settings(hypothesis.given(*given, **given_by_name)(test)))

    return decorate
